/** The labels of a sandbox, to be changed: each a name and a value. */

import { Dialog } from "radix-ui";
import { type FormEvent, useId, useState } from "react";
import { segment, send } from "../api/client";
import type { Sandbox } from "../api/types";
import { ProblemBox } from "../parts/Problems";

type Row = { key: number; name: string; value: string };

export default function Labels({ sandbox, changed }: { sandbox: Sandbox; changed: () => void }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <Dialog.Root open={isOpen} onOpenChange={setOpen}>
      <Dialog.Trigger asChild>
        <button type="button">Labels</button>
      </Dialog.Trigger>
      <Dialog.Portal>
        <Dialog.Overlay className="overlay" />
        <Dialog.Content className="dialog" aria-describedby={undefined}>
          <Dialog.Title>Labels</Dialog.Title>
          <LabelForm
            sandbox={sandbox}
            done={() => {
              setOpen(false);
              changed();
            }}
          />
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}

function LabelForm({ sandbox, done }: { sandbox: Sandbox; done: () => void }) {
  const [rows, setRows] = useState<Row[]>(() => [
    ...Object.entries(sandbox.metadata).map(([name, value], key) => ({ key, name, value })),
    { key: -1, name: "", value: "" },
  ]);
  const [problem, setProblem] = useState<unknown>(null);
  const ids = useId();
  const set = (key: number, change: Partial<Row>) =>
    setRows((known) => known.map((row) => (row.key === key ? { ...row, ...change } : row)));
  const save = async (event: FormEvent) => {
    event.preventDefault();
    try {
      await send("PATCH", `/v1/sandboxes/${segment(sandbox.id)}`, {
        metadata: changesOf(sandbox.metadata, rows),
      });
      done();
    } catch (error) {
      setProblem(error);
    }
  };

  return (
    <form className="labels-form" onSubmit={save}>
      {rows.map((row, index) => (
        <div className="row" key={row.key}>
          <input
            id={`${ids}-${row.key}`}
            aria-label={`Name of label ${index + 1}`}
            placeholder="name"
            value={row.name}
            onChange={(event) => set(row.key, { name: event.target.value })}
          />
          <input
            aria-label={`Value of label ${index + 1}`}
            placeholder="value"
            value={row.value}
            onChange={(event) => set(row.key, { value: event.target.value })}
          />
          <button
            type="button"
            className="subtle"
            aria-label={`Remove label ${index + 1}`}
            onClick={() => setRows((known) => known.filter((each) => each.key !== row.key))}
          >
            Remove
          </button>
        </div>
      ))}
      {problem !== null && <ProblemBox error={problem} title="The labels were not changed" />}
      <div className="row end">
        <button
          type="button"
          onClick={() => setRows((known) => [...known, { key: Date.now(), name: "", value: "" }])}
        >
          Another
        </button>
        <Dialog.Close type="button">Cancel</Dialog.Close>
        <button type="submit" className="primary">
          Save
        </button>
      </div>
    </form>
  );
}

/** What is new or different, and null for what is no longer there. */
export function changesOf(
  was: Record<string, string>,
  rows: { name: string; value: string }[],
): Record<string, string | null> {
  const now = Object.fromEntries(rows.filter((row) => row.name).map((row) => [row.name, row.value]));
  const gone = Object.keys(was).filter((name) => !(name in now));
  return {
    ...Object.fromEntries(Object.entries(now).filter(([name, value]) => was[name] !== value)),
    ...Object.fromEntries(gone.map((name) => [name, null])),
  };
}
