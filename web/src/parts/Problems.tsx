/** A problem in words: what is wrong, the way out, and the request's id for the server's log. */

import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { asProblem, type Problem } from "../api/problem";
import { visible } from "./format";

// Of a question whose answer names no time.
const SECONDS_TO_RETRY = 5;

type Given = {
  error: unknown;
  /** Asks again. */
  retry?: (() => void) | undefined;
  /** Sends an act again that was refused for want of room. */
  again?: (() => void) | undefined;
  /** Looks whether an act happened; else all that is shown is read anew. */
  look?: (() => void) | undefined;
  title?: string;
};

export function ProblemBox({ error, retry, again, look, title }: Given) {
  const problem = asProblem(error);
  if (problem.isOutcomeUnknown) return <OutcomeUnknown problem={problem} look={look} />;

  return (
    <div className="problem" role="alert">
      <strong>{title ?? headline(problem.status)}</strong>
      <p>{visible(problem.message)}</p>
      {problem.hint && <p className="hint">{visible(problem.hint)}</p>}
      <Wait error={error} retry={retry} again={again} />
      <div className="row">
        {retry && problem.status !== 410 && (
          <button type="button" onClick={retry}>
            Try again
          </button>
        )}
        {problem.requestId && <code className="quiet">request {problem.requestId}</code>}
      </div>
    </div>
  );
}

/** An act that may have happened: no title may say that it did not, and the way out is to look, not to repeat it. */
function OutcomeUnknown({ problem, look }: { problem: Problem; look: Given["look"] }) {
  const queries = useQueryClient();
  const [isLooking, setLooking] = useState(false);
  const [hasLooked, setLooked] = useState(false);
  const lookAtAll = async () => {
    setLooking(true);
    await queries.invalidateQueries();
    setLooking(false);
    setLooked(true);
  };

  return (
    <div className="problem" role="alert">
      <strong>It is not known whether that happened</strong>
      <p>{visible(problem.message)}</p>
      {problem.hint && <p className="hint">{visible(problem.hint)}</p>}
      {hasLooked && <p>The page was read anew: what it shows now is what the server has.</p>}
      <div className="row">
        <button type="button" disabled={isLooking} onClick={look ?? lookAtAll}>
          Look whether it happened
        </button>
        {problem.requestId && <code className="quiet">request {problem.requestId}</code>}
      </div>
    </div>
  );
}

/** Counts down to the next try of a question; for an act, to the moment from which it may be tried again. */
function Wait({ error, retry, again }: Pick<Given, "error" | "retry" | "again">) {
  const { isPassing, isRefusedForNow, retryAfterSeconds } = asProblem(error);
  const seconds = isPassing ? (retryAfterSeconds ?? (retry ? SECONDS_TO_RETRY : null)) : null;
  const left = useCountdown(error, seconds, retry);
  if (left === null) return null;
  if (retry) return <p>Tries again in {left} s.</p>;
  return (
    <div className="row">
      <span>{left > 0 ? `You can try again in ${left} s.` : "You can try again now."}</span>
      {again && isRefusedForNow && (
        <button type="button" disabled={left > 0} onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

function headline(status: number): string {
  if (status === 403) return "This key may not do that";
  if (status === 404) return "There is nothing here for this key";
  if (status === 410) return "It is gone";
  if (status === 429) return "Too many requests";
  if (status === 503 || status === 0) return "The server cannot answer now";
  return "That did not work";
}

/** The whole seconds that are left since an error came, and a call when they are over; each error begins anew. */
function useCountdown(error: unknown, seconds: number | null, done: (() => void) | undefined): number | null {
  const [left, setLeft] = useState(seconds);
  const latest = useRef(done);
  latest.current = done;

  // biome-ignore lint/correctness/useExhaustiveDependencies: an error that comes again, with the same wait, is another
  useEffect(() => {
    setLeft(seconds);
    if (seconds === null) return;
    const end = Date.now() + seconds * 1000;
    const timer = setInterval(() => {
      const rest = Math.max(0, Math.ceil((end - Date.now()) / 1000));
      setLeft(rest);
      if (rest > 0) return;
      clearInterval(timer);
      latest.current?.();
    }, 250);
    return () => clearInterval(timer);
  }, [error, seconds]);

  return left;
}

export function Empty({ title, children }: { title: string; children?: React.ReactNode }) {
  return (
    <div className="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}
