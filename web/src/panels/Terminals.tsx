/** The terminals of a sandbox: each outlives this page, and others may type into it too. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { lazy, Suspense, useState } from "react";
import { get, segment, send } from "../api/client";
import type * as api from "../api/schema";
import { Confirm } from "../parts/Confirm";
import { visibleLine } from "../parts/format";
import { Empty, ProblemBox } from "../parts/Problems";

const TerminalView = lazy(() => import("./TerminalView"));

type Command = api.ProcessInfo;
const SHELL = {
  argv: ["/bin/bash", "-i", "-l"],
  stdin: true,
  pty: { cols: 80, rows: 24 },
  envs: { TERM: "xterm-256color", LANG: "C.UTF-8", LC_ALL: "C.UTF-8" },
};

export function TerminalsPanel({ sandboxId, canAct }: { sandboxId: string; canAct: boolean }) {
  const queries = useQueryClient();
  const [chosen, setChosen] = useState<number | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const base = `/v1/sandboxes/${segment(sandboxId)}/commands`;
  const list = useQuery({
    queryKey: ["terminals", sandboxId],
    queryFn: ({ signal }) => get<{ items: Command[] }>(base, signal),
    // To ask for its commands would resume a paused sandbox.
    enabled: canAct,
    retry: false,
  });
  const refresh = () => queries.invalidateQueries({ queryKey: ["terminals", sandboxId] });
  const open = async () => {
    setProblem(null);
    try {
      const made = await send<Command>("POST", base, SHELL);
      await refresh();
      setChosen(made.pid);
    } catch (error) {
      setProblem(error);
    }
  };

  if (!canAct) {
    return (
      <div className="panel-body">
        <p className="note">Terminals need a sandbox that runs: looking here does not resume it.</p>
      </div>
    );
  }
  const terminals = (list.data?.items ?? []).filter((each) => each.is_pty);
  const shown = terminals.find((each) => each.pid === chosen) ?? terminals.at(-1);

  return (
    <div className="panel-body terminals">
      <div className="row">
        <fieldset className="row" aria-label="Terminals">
          {terminals.map((each) => (
            <button
              key={each.pid}
              type="button"
              className="subtle"
              aria-pressed={each.pid === shown?.pid}
              onClick={() => setChosen(each.pid)}
            >
              {visibleLine(each.argv[0]?.split("/").at(-1) ?? "", 20)} {each.pid}
            </button>
          ))}
        </fieldset>
        <button type="button" onClick={open}>
          New terminal
        </button>
        {shown && (
          <Confirm
            trigger={
              <button type="button" className="subtle">
                End
              </button>
            }
            title={`End terminal ${shown.pid}?`}
            act="End"
            run={() => send("POST", `${base}/${shown.pid}/signal`, { signal: "SIGKILL" })}
            done={refresh}
          >
            What runs on it ends with it, for all who use it.
          </Confirm>
        )}
      </div>
      {problem !== null && <ProblemBox error={problem} title="No terminal was opened" />}
      {list.error && <ProblemBox error={list.error} retry={refresh} />}
      {list.data && !shown && (
        <Empty title="No terminal is open.">
          <p>A terminal goes on when this page is closed, and is here again when you come back.</p>
        </Empty>
      )}
      {shown && (
        <Suspense fallback={<div className="skeleton" />}>
          <TerminalView key={shown.pid} sandboxId={sandboxId} pid={shown.pid} ended={refresh} />
        </Suspense>
      )}
    </div>
  );
}
