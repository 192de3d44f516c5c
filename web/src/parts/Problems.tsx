/** A problem in words: what is wrong, the way out, and the request's id for the server's log. */

import { useEffect, useState } from "react";
import { asProblem } from "../api/problem";
import { visible } from "./format";

type Given = { error: unknown; retry?: (() => void) | undefined; title?: string };

export function ProblemBox({ error, retry, title }: Given) {
  const problem = asProblem(error);
  const wait = problem.isPassing && retry ? (problem.retryAfterSeconds ?? 5) : null;
  const left = useCountdown(wait, retry);

  return (
    <div className="problem" role="alert">
      <strong>{title ?? headline(problem.status)}</strong>
      <p>{visible(problem.message)}</p>
      {problem.hint && <p className="hint">{visible(problem.hint)}</p>}
      {left !== null && <p>Tries again in {left} s.</p>}
      <div className="row">
        {retry && problem.status !== 410 && (
          <button type="button" onClick={retry}>
            {problem.isOutcomeUnknown ? "Look whether it happened" : "Try again"}
          </button>
        )}
        {problem.requestId && <code className="quiet">request {problem.requestId}</code>}
      </div>
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

function useCountdown(from: number | null, done: (() => void) | undefined): number | null {
  const [left, setLeft] = useState(from);

  useEffect(() => setLeft(from), [from]);
  useEffect(() => {
    if (left === null) return;
    if (left <= 0) {
      done?.();
      setLeft(from);
      return;
    }
    const timer = setTimeout(() => setLeft(left - 1), 1000);
    return () => clearTimeout(timer);
  }, [left, done, from]);

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
