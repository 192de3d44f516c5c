/** Runs a record again in a fresh sandbox, and shows cell by cell whether it does the same. */

import { useEffect, useRef, useState } from "react";
import { segment } from "../api/client";
import { type Compared, type EndedSandbox, type Replayed, replay } from "../api/records";
import type { Cell } from "../api/types";
import { visible, visibleLine } from "../parts/format";
import { ProblemBox } from "../parts/Problems";
import { useMayAct } from "../parts/rights";

type Given = {
  ended: EndedSandbox;
  contextId: string;
  cells: Cell[];
  /** The position of the first cell of the record. */
  first: number;
  choose: (id: string | null) => void;
};

export function Replay({ ended, contextId, cells, first: offset, choose }: Given) {
  const mayAct = useMayAct();
  const [isFixed, setFixed] = useState(false);
  const [compared, setCompared] = useState<Compared[]>([]);
  const [sums, setSums] = useState<Replayed | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [stop, setStop] = useState<AbortController | null>(null);
  const running = useRef<AbortController | null>(null);
  const language = ended.contexts.find((each) => each.id === contextId)?.language ?? "python";
  // Leaving ends it.
  useEffect(() => () => running.current?.abort(), []);

  const run = async () => {
    const control = new AbortController();
    running.current = control;
    setStop(control);
    setCompared([]);
    setSums(null);
    setProblem(null);
    try {
      const body = { context_id: contextId, deterministic: isFixed };
      const path = `/v1/records/${segment(ended.sandbox.id)}/replay`;
      setSums(await replay(path, body, control.signal, (cell) => setCompared((known) => [...known, cell])));
    } catch (error) {
      if (!control.signal.aborted) setProblem(error);
    } finally {
      setStop(null);
    }
  };
  const first = compared.find((cell) => cell.differences.length > 0);

  return (
    <div className="panel-body replay">
      <div className="row">
        {stop ? (
          <button type="button" onClick={() => stop.abort()}>
            Stop
          </button>
        ) : (
          <button type="button" className="primary" disabled={!mayAct} onClick={run}>
            Run again
          </button>
        )}
        {language === "python" && (
          <label className="check">
            <input
              type="checkbox"
              checked={isFixed}
              disabled={stop !== null}
              onChange={(event) => setFixed(event.target.checked)}
            />{" "}
            fix seeds and time
          </label>
        )}
      </div>
      <p className="quiet">
        In a fresh sandbox of yours, from the same template, without a network. Files that were uploaded are
        not there.
      </p>
      <p role="status">
        {stop && `Running cell ${compared.length + 1}…`}
        {sums && said(sums)}
      </p>
      {problem !== null && <ProblemBox error={problem} title="It did not run to its end" />}
      {first && (
        <button type="button" className="link" onClick={() => choose(idOf(cells, offset + first.number))}>
          To cell {first.number}, the first that differs
        </button>
      )}
      <ol className="replayed">
        {compared.map((cell) => (
          <li key={cell.number}>
            <div className="row">
              <button
                type="button"
                className="number"
                onClick={() => choose(idOf(cells, offset + cell.number))}
                title="Show this cell"
              >
                [{cell.number}]
              </button>
              <Verdict cell={cell} />
              <code className="quiet">{visibleLine(cell.code, 60)}</code>
            </div>
            {cell.differences.map((each) => (
              <dl key={each.what} className="difference">
                <dt>{visibleLine(each.what, 100)}</dt>
                <dd>
                  was <q>{each.expected === null ? "nothing" : visible(each.expected)}</q>
                </dd>
                <dd>
                  now <q>{each.actual === null ? "nothing" : visible(each.actual)}</q>
                </dd>
              </dl>
            ))}
          </li>
        ))}
      </ol>
      {sums && sums.not_fixed.length > 0 && (
        <details>
          <summary>What a replay does not fix</summary>
          <ul>
            {sums.not_fixed.map((each) => (
              <li key={each}>{each}</li>
            ))}
          </ul>
        </details>
      )}
    </div>
  );
}

const SKIPPED: Record<string, string> = {
  undone: "undone, not run",
  interrupted: "was interrupted, not run",
  ended: "its sandbox ended meanwhile, not run",
};

function Verdict({ cell }: { cell: Compared }) {
  if (cell.is_skipped) return <span className="chip">{SKIPPED[cell.skip_reason] ?? "not run"}</span>;
  if (cell.differences.length > 0) return <span className="bad">✗ differs</span>;
  if (!cell.is_known) return <span className="chip">outputs not kept</span>;
  return <span className="good">✓ same</span>;
}

export function said(sums: Replayed): string {
  const missing = sums.dropped_cells > 0 ? ` ${sums.dropped_cells} older cells are not in the record.` : "";
  return sums.first_difference === null
    ? `${sums.same} of ${sums.cells} cells did the same.${missing}`
    : `Cell ${sums.first_difference} is the first that differs; ${sums.same} of ${sums.cells} did the same.${missing}`;
}

function idOf(cells: Cell[], number: number): string | null {
  return cells.find((cell) => cell.position === number - 1)?.id ?? null;
}
