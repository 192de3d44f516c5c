/** The palette: every view, the living sandboxes and the colours by their names; and the list of keys. */

import { useQuery } from "@tanstack/react-query";
import { Dialog } from "radix-ui";
import { type KeyboardEvent, useDeferredValue, useId, useState } from "react";
import { useLocation } from "wouter";
import { get, segment } from "../api/client";
import type { Page, Sandbox } from "../api/types";
import { shortId, visibleLine } from "./format";
import { areLettersOn, setLetters } from "./letters";
import type { Place } from "./Shell";
import { applyTheme, type Theme } from "./theme";

type Entry = { id: string; name: string; about: string; act: () => void };
const MOST_SANDBOXES = 20;
const THEMES: [Theme, string][] = [
  ["system", "Colours as the system"],
  ["light", "Light colours"],
  ["dark", "Dark colours"],
];

export function Palette({ places, close }: { places: Place[]; close: () => void }) {
  const [, go] = useLocation();
  const [words, setWords] = useState("");
  const [at, setAt] = useState(0);
  const list = useId();
  const wanted = useDeferredValue(words.trim());
  const found = useQuery({
    queryKey: ["palette", wanted],
    queryFn: ({ signal }) =>
      get<Page<Sandbox>>(
        `/v1/sandboxes?order=-started&limit=${MOST_SANDBOXES}&q=${segment(wanted.slice(0, 60))}`,
        signal,
      ),
    placeholderData: (earlier) => earlier,
    retry: false,
  });
  const acting = (act: () => void) => () => {
    close();
    act();
  };
  const fixed: Entry[] = [
    ...places.map((place) => ({
      id: place.path,
      name: place.name,
      about: `g ${place.key}`,
      act: acting(() => go(place.path)),
    })),
    ...THEMES.map(([theme, name]) => ({
      id: `theme-${theme}`,
      name,
      about: "this browser",
      act: acting(() => applyTheme(theme)),
    })),
  ];
  const sandboxes: Entry[] = (found.data?.items ?? []).map((each) => ({
    id: each.id,
    name: `Sandbox ${shortId(each.id)}`,
    about: visibleLine([each.template, ...Object.values(each.metadata)].join(" "), 60),
    act: acting(() => go(`/sandboxes/${segment(each.id)}`)),
  }));
  const entries = [
    ...fixed.filter((entry) => entry.name.toLowerCase().includes(wanted.toLowerCase())),
    ...sandboxes,
  ];
  const chosen = Math.min(at, entries.length - 1);

  const press = (event: KeyboardEvent) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by !== undefined) {
      event.preventDefault();
      setAt((chosen + by + entries.length) % Math.max(1, entries.length));
    } else if (event.key === "Enter") {
      event.preventDefault();
      entries[chosen]?.act();
    }
  };

  return (
    <Dialog.Root open onOpenChange={close}>
      <Dialog.Portal>
        <Dialog.Overlay className="overlay" />
        <Dialog.Content className="dialog palette" aria-describedby={undefined}>
          <Dialog.Title className="unseen">Go to</Dialog.Title>
          <input
            role="combobox"
            aria-label="View, sandbox or colours"
            aria-expanded="true"
            aria-controls={list}
            aria-activedescendant={entries[chosen] ? `${list}-${chosen}` : undefined}
            placeholder="A view, a sandbox by id, label or template, …"
            value={words}
            onChange={(event) => {
              setWords(event.target.value);
              setAt(0);
            }}
            onKeyDown={press}
          />
          <div role="listbox" id={list} aria-label="What fits">
            {entries.map((entry, index) => (
              // biome-ignore lint/a11y/useKeyWithClickEvents: the field has the focus, and its keys choose
              <div
                key={entry.id}
                role="option"
                tabIndex={-1}
                id={`${list}-${index}`}
                aria-selected={index === chosen}
                onClick={entry.act}
              >
                <span>{entry.name}</span> <span className="quiet">{entry.about}</span>
              </div>
            ))}
          </div>
          {entries.length === 0 && <p className="quiet">Nothing fits.</p>}
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}

const KEYS: [string, [string, string][]][] = [
  [
    "Everywhere",
    [
      ["Ctrl K", "go to a view or a sandbox"],
      ["?", "these keys"],
      ["/", "filter of the list"],
    ],
  ],
  [
    "In a sandbox",
    [
      ["Enter, Esc", "enter, leave the composer"],
      ["Shift Enter", "run"],
      ["Ctrl Enter", "run, and keep the code"],
      ["j, k", "next, previous cell"],
      ["c", "checkpoint"],
      ["f", "fork"],
      ["I I", "interrupt"],
      ["1, 2, …", "panel"],
      ["Shift F6", "leave a terminal"],
    ],
  ],
];

export function KeyList({ places, close }: { places: Place[]; close: () => void }) {
  const [areOn, setOn] = useState(areLettersOn());
  const groups: typeof KEYS = [...KEYS, ["Views", places.map((place) => [`g ${place.key}`, place.name])]];
  return (
    <Dialog.Root open onOpenChange={close}>
      <Dialog.Portal>
        <Dialog.Overlay className="overlay" />
        <Dialog.Content className="dialog keys" aria-describedby={undefined}>
          <Dialog.Title>Keys</Dialog.Title>
          {groups.map(([name, keys]) => (
            <section key={name}>
              <h2>{name}</h2>
              <dl>
                {keys.map(([key, about]) => (
                  <div key={key}>
                    <dt>
                      <kbd>{key}</kbd>
                    </dt>
                    <dd>{about}</dd>
                  </div>
                ))}
              </dl>
            </section>
          ))}
          <label className="check">
            <input
              type="checkbox"
              checked={areOn}
              onChange={(event) => {
                setLetters(event.target.checked);
                setOn(event.target.checked);
              }}
            />{" "}
            single keys act where no field has the focus
          </label>
          <div className="row end">
            <Dialog.Close>Close</Dialog.Close>
          </div>
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
