/** Where code is written and sent to run: detached, so that it goes on when this page goes. */

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { lazy, Suspense, useCallback, useRef, useState } from "react";
import { segment, send } from "../api/client";
import { asProblem, Problem } from "../api/problem";
import { cellsQuery } from "../api/queries";
import type { Cell } from "../api/types";
import { useActNames } from "../parts/actName";
import type { Completions, EditorHandle } from "../parts/Editor";
import { painted } from "../parts/hooks";
import { ProblemBox } from "../parts/Problems";

/** The editor takes longest of all to begin: what ran is seen before. */
const Editor = lazy(async () => {
  const [made] = await Promise.all([import("../parts/Editor"), painted()]);
  return made;
});
const KEPT = "fumehood-draft-";

const CONFLICT = 409;

type Wanted = { code: string; stays: boolean };
type Given = {
  sandboxId: string;
  contextId: string;
  cells: Cell[];
  isRunning: boolean;
  ran: () => void;
  handle: (handle: EditorHandle) => void;
};

export function Composer({ sandboxId, contextId, cells, isRunning, ran, handle }: Given) {
  const editor = useRef<EditorHandle | null>(null);
  const [isSaved, setSaved] = useState(false);
  const path = `/v1/sandboxes/${segment(sandboxId)}`;
  const context = `${path}/contexts/${segment(contextId)}`;

  const queries = useQueryClient();
  const names = useActNames();
  // The last cell that was there before the code was sent.
  const before = useRef(-1);
  const [found, setFound] = useState<string | null>(null);

  const run = useMutation({
    mutationFn: async ({ code }: Wanted) => {
      setFound(null);
      if (isSaved) await keepNow(path, contextId);
      const asked = {
        code,
        context_id: contextId,
        detached: true,
        allow_input: true,
        tell_changes: true,
      };
      return send("POST", `${path}/executions`, asked, { once: names.of(code) });
    },
    onMutate: () => {
      // Sent again, it may be the cell of the first time.
      if (!run.error || !asProblem(run.error).isOutcomeUnknown) before.current = cells.at(-1)?.position ?? -1;
    },
    onSettled: (_, error) => names.ended(error),
    onSuccess: (_, { stays }) => {
      if (!stays) editor.current?.set("");
      sessionStorage.removeItem(KEPT + sandboxId);
      ran();
    },
    // What was typed outlives a login that ended.
    onError: (_, { code }) => sessionStorage.setItem(KEPT + sandboxId, code),
  });
  const look = async () => {
    const { code } = run.variables ?? { code: "" };
    const page = await queries.fetchQuery({
      ...cellsQuery("sandboxes", sandboxId, contextId),
      staleTime: 0,
    });
    const cell = page.items.findLast((each) => each.position > before.current && each.code === code);
    // With its name, the code runs once also where the first request comes late; a name that is spent is of no use.
    if (cell || asProblem(run.error).status === CONFLICT) names.forget();
    setFound(
      cell
        ? `It ran: it is cell ${cell.position + 1}.`
        : "No cell with this code has begun since. If you run it again as it is, it runs once, whatever became of the first.",
    );
    if (cell) editor.current?.set("");
    run.reset();
    editor.current?.focus();
  };
  const interrupt = useMutation({ mutationFn: () => send("POST", `${context}/interrupt`), onSettled: ran });
  const complete = useCallback(
    async (code: string, cursor: number) => {
      // It would wait behind what runs.
      if (isRunning) return { matches: [], cursor_start: cursor, cursor_end: cursor };
      return send<Completions>("POST", `${context}/complete`, { code, cursor }, { isRepeatable: true });
    },
    [context, isRunning],
  );
  const start = () => {
    const code = editor.current?.text() ?? "";
    if (code.trim()) run.mutate({ code, stays: false });
  };

  return (
    <section className="composer" aria-label="Composer">
      {run.error && (
        <ProblemBox
          error={run.error}
          title="The code was not run"
          again={() => run.variables && run.mutate(run.variables)}
          look={look}
        />
      )}
      {found && (
        <p className="note" role="status">
          {found}
        </p>
      )}
      {interrupt.error && <ProblemBox error={interrupt.error} title="It was not interrupted" />}
      <Suspense fallback={<div className="editor" />}>
        <Editor
          start={sessionStorage.getItem(KEPT + sandboxId) ?? ""}
          ready={(made) => {
            editor.current = made;
            handle(made);
          }}
          run={(code, stays) => run.mutate({ code, stays })}
          complete={complete}
          earlier={(back) => cells.at(-back)?.code}
          leave={() => (document.activeElement as HTMLElement | null)?.blur()}
        />
      </Suspense>
      <div className="row">
        <button type="button" className="primary" disabled={run.isPending} onClick={start}>
          Run <kbd>Shift Enter</kbd>
        </button>
        {isRunning && (
          <button type="button" disabled={interrupt.isPending} onClick={() => interrupt.mutate()}>
            Interrupt <kbd>I I</kbd>
          </button>
        )}
        <label className="check">
          <input type="checkbox" checked={isSaved} onChange={(event) => setSaved(event.target.checked)} />{" "}
          checkpoint before
        </label>
      </div>
    </section>
  );
}

/** Makes a checkpoint before code is sent; where that is not known to be done, the code is not sent. */
async function keepNow(path: string, contextId: string): Promise<void> {
  try {
    await send("POST", `${path}/checkpoints`, { context_id: contextId });
  } catch (error) {
    const problem = asProblem(error);
    if (!problem.isOutcomeUnknown) throw problem;
    throw new Problem(
      {
        code: "checkpoint_unknown",
        detail: "The connection ended while the checkpoint was being made: the code was not sent.",
        hint: "Running it again makes another checkpoint, which does no harm.",
      },
      0,
    );
  }
}
