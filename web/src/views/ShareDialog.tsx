/** The making of a share: what it shows, from when on, for how long; then its address, once. */

import { useQueryClient } from "@tanstack/react-query";
import { Dialog } from "radix-ui";
import { type FormEvent, useState } from "react";
import { Link } from "wouter";
import { send } from "../api/client";
import { type NewShare, PART_NAMES, PARTS, type SharedPart } from "../api/shares";
import { copy } from "../parts/hooks";
import { ProblemBox } from "../parts/Problems";

const TIMES: [number, string][] = [
  [3600, "an hour"],
  [86_400, "a day"],
  [7 * 86_400, "a week"],
  [30 * 86_400, "30 days"],
];
const OF_NOW: SharedPart[] = ["variables", "files"];
const DEFAULT_CONTEXT = "default";

export default function ShareDialog({ sandboxId, contextId }: { sandboxId: string; contextId: string }) {
  const [made, setMade] = useState<NewShare | null>(null);
  return (
    <Dialog.Root onOpenChange={() => setMade(null)}>
      <Dialog.Trigger asChild>
        <button type="button">Share</button>
      </Dialog.Trigger>
      <Dialog.Portal>
        <Dialog.Overlay className="overlay" />
        <Dialog.Content className="dialog" aria-describedby={undefined}>
          <Dialog.Title>Share this sandbox</Dialog.Title>
          {made ? <Address made={made} /> : <Choice {...{ sandboxId, contextId }} made={setMade} />}
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}

type ChoiceGiven = { sandboxId: string; contextId: string; made: (share: NewShare) => void };

function Choice({ sandboxId, contextId, made }: ChoiceGiven) {
  const queries = useQueryClient();
  const [shows, setShows] = useState<SharedPart[]>(["record"]);
  const [isLive, setLive] = useState(true);
  const [isFromNow, setFromNow] = useState(false);
  const [seconds, setSeconds] = useState(86_400);
  const [problem, setProblem] = useState<unknown>(null);
  const whyNot = (part: SharedPart) => {
    if (!isLive && OF_NOW.includes(part)) return "only live";
    if (part === "network" && contextId !== DEFAULT_CONTEXT)
      return "of the whole sandbox: only with its default context";
    return null;
  };
  const chosen = shows.filter((part) => whyNot(part) === null);

  const share = async (event: FormEvent) => {
    event.preventDefault();
    const now = new Date().toISOString();
    try {
      made(
        await send<NewShare>("POST", "/v1/shares", {
          sandbox_id: sandboxId,
          context_id: contextId,
          shows: chosen,
          seconds,
          from_at: isLive && isFromNow ? now : null,
          until_at: isLive ? null : now,
        }),
      );
      queries.invalidateQueries({ queryKey: ["shares"] });
    } catch (error) {
      setProblem(error);
    }
  };

  return (
    <form className="share-form" onSubmit={share}>
      <p>
        Who has the address looks on, without an account. Nothing can be done with it: no code, no input, no
        terminal, no scripts of results.
      </p>
      <fieldset>
        <legend>It shows</legend>
        {PARTS.map((part) => {
          const reason = whyNot(part);
          return (
            <label key={part} className="check">
              <input
                type="checkbox"
                checked={chosen.includes(part)}
                disabled={reason !== null}
                onChange={(event) =>
                  setShows(event.target.checked ? [...shows, part] : shows.filter((each) => each !== part))
                }
              />{" "}
              {PART_NAMES[part]}
              {reason !== null && ` (${reason})`}
            </label>
          );
        })}
      </fieldset>
      <fieldset>
        <legend>When</legend>
        <label className="check">
          <input type="radio" name="time" checked={isLive} onChange={() => setLive(true)} /> live
        </label>
        <label className="check">
          <input type="radio" name="time" checked={!isLive} onChange={() => setLive(false)} /> up to now
        </label>
        {isLive && (
          <label className="check">
            <input
              type="checkbox"
              checked={isFromNow}
              onChange={(event) => setFromNow(event.target.checked)}
            />{" "}
            without what began before now
          </label>
        )}
      </fieldset>
      <label className="row">
        Ends after
        <select value={seconds} onChange={(event) => setSeconds(Number(event.target.value))}>
          {TIMES.map(([value, name]) => (
            <option key={value} value={value}>
              {name}
            </option>
          ))}
        </select>
      </label>
      {problem !== null && <ProblemBox error={problem} />}
      <div className="row end">
        <Dialog.Close>Cancel</Dialog.Close>
        <button type="submit" className="primary" disabled={chosen.length === 0}>
          Make the address
        </button>
      </div>
    </form>
  );
}

function Address({ made }: { made: NewShare }) {
  const [isCopied, setCopied] = useState(false);
  return (
    <div className="share-form">
      <p>
        This address is shown once. What stands behind the # opens the share, and is sent to no log or proxy.
      </p>
      <input
        readOnly
        aria-label="Address of the share"
        value={made.url}
        onFocus={(event) => event.target.select()}
      />
      <p className="quiet">
        It ends on {new Date(made.share.ends_at).toLocaleString()}, or when you revoke it under{" "}
        <Link href="/shares">Shares</Link>.
      </p>
      <div className="row end">
        <Dialog.Close>Close</Dialog.Close>
        <button
          type="button"
          className="primary"
          onClick={async () => {
            await copy(made.url);
            setCopied(true);
          }}
        >
          {isCopied ? "Copied" : "Copy"}
        </button>
      </div>
    </div>
  );
}
