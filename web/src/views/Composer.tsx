/** Where code is written and sent to run: detached, so that it goes on when this page goes. */

import { useMutation } from "@tanstack/react-query";
import { lazy, Suspense, useCallback, useRef, useState } from "react";
import { segment, send } from "../api/client";
import type { Cell } from "../api/types";
import type { Completions, EditorHandle } from "../parts/Editor";
import { painted } from "../parts/hooks";
import { ProblemBox } from "../parts/Problems";

/** The editor takes longest of all to begin: what ran is seen before. */
const Editor = lazy(async () => {
  const [made] = await Promise.all([import("../parts/Editor"), painted()]);
  return made;
});
const KEPT = "fumehood-draft-";

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

  const run = useMutation({
    mutationFn: async ({ code }: { code: string; stays: boolean }) => {
      if (isSaved) await send("POST", `${path}/checkpoints`, { context_id: contextId });
      return send("POST", `${path}/executions`, {
        code,
        context_id: contextId,
        detached: true,
        allow_input: true,
        tell_changes: true,
      });
    },
    onSuccess: (_, { stays }) => {
      if (!stays) editor.current?.set("");
      sessionStorage.removeItem(KEPT + sandboxId);
      ran();
    },
    // What was typed outlives a login that ended.
    onError: (_, { code }) => sessionStorage.setItem(KEPT + sandboxId, code),
  });
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
      {run.error && <ProblemBox error={run.error} title="The code was not run" />}
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
