/** One sandbox: what ran in it, where one can go back to, and what it holds now. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Dialog, Tabs } from "radix-ui";
import { lazy, type ReactNode, Suspense, useCallback, useMemo, useRef, useState } from "react";
import { Link, useLocation, useSearchParams } from "wouter";
import { get, segment, send } from "../api/client";
import { asProblem } from "../api/problem";
import { sandboxQuery, whileItMayAnswer } from "../api/queries";
import type { Sandbox as Box, Page } from "../api/types";
import { AuditPanel } from "../panels/Audit";
import { FilesPanel } from "../panels/Files";
import { Isolation } from "../panels/Isolation";
import { NetworkPanel } from "../panels/Network";
import { PortsPanel } from "../panels/Ports";
import { TerminalsPanel } from "../panels/Terminals";
import { VariablesPanel } from "../panels/Variables";
import { useActNames } from "../parts/actName";
import type { EditorHandle } from "../parts/Editor";
import { visibleLine } from "../parts/format";
import { useKeys, useMedia } from "../parts/hooks";
import { LiveLost } from "../parts/LiveLost";
import { ProblemBox } from "../parts/Problems";
import { useMayAct } from "../parts/rights";
import { Composer } from "./Composer";
import { Export } from "./Export";
import { SandboxHead } from "./SandboxHead";
import { Timeline } from "./Timeline";
import { Transcript } from "./Transcript";
import { useCells } from "./useCells";

const ShareDialog = lazy(() => import("./ShareDialog"));
const PANELS = ["variables", "files", "terminal", "ports", "network", "audit", "isolation"] as const;
/** What the guest is asked for, which a key that only watches may not. */
const OF_THE_GUEST: ReadonlySet<string> = new Set(["files", "terminal"]);
const NAMES: Record<string, string> = {
  variables: "Variables",
  files: "Files",
  terminal: "Terminal",
  ports: "Ports",
  network: "Network",
  audit: "Audit",
  isolation: "Isolation",
};
const TWICE_MILLISECONDS = 1000;

export default function Sandbox({ id }: { id: string }) {
  const sandbox = useQuery({
    ...sandboxQuery(id),
    refetchInterval: whileItMayAnswer(5000),
    retry: false,
  });

  if (!sandbox.data) {
    return (
      <div className="page">
        {sandbox.error ? (
          <ProblemBox error={sandbox.error} retry={() => sandbox.refetch()} />
        ) : (
          <div className="skeleton" />
        )}
      </div>
    );
  }
  return <Living sandbox={sandbox.data} problem={sandbox.error} />;
}

function Living({ sandbox, problem }: { sandbox: Box; problem: unknown }) {
  const { id } = sandbox;
  const queries = useQueryClient();
  const [, go] = useLocation();
  const [search, setSearch] = useSearchParams();
  const editor = useRef<EditorHandle | null>(null);
  const [runs, setRuns] = useState(0);
  const [exportProblem, setExportProblem] = useState<unknown>(null);
  const isWide = useMedia("(min-width: 900px)");
  const isGone = problem !== null && [404, 410].includes(asProblem(problem).status);
  const mayAct = useMayAct();
  const canAct = mayAct && !isGone && sandbox.state === "running";
  const contextId = search.get("context") ?? "default";
  const chosen = search.get("cell");
  const panels = mayAct ? PANELS : PANELS.filter((name) => !OF_THE_GUEST.has(name));
  const asked = search.get("panel");
  const panel = panels.find((name) => name === asked) ?? PANELS[0];
  const set = useCallback(
    (name: string, value: string | null) =>
      setSearch(
        (earlier) => {
          const next = new URLSearchParams(earlier);
          if (value === null) next.delete(name);
          else next.set(name, value);
          return next;
        },
        { replace: true },
      ),
    [setSearch],
  );
  const choose = useCallback((cell: string | null) => set("cell", cell), [set]);
  const cells = useCells(id, contextId, !isGone);
  const positions = useMemo(
    () => new Map(cells.cells.map((cell) => [cell.id, cell.position + 1])),
    [cells.cells],
  );
  const isRunning = cells.cells.some((cell) => cell.state === "running");

  const checkpoint = useMutation({
    mutationFn: () => send("POST", `/v1/sandboxes/${segment(id)}/checkpoints`, { context_id: contextId }),
    onSettled: () => queries.invalidateQueries({ queryKey: ["timeline", id] }),
  });
  const names = useActNames();
  const fork = useMutation({
    mutationFn: () =>
      send<Page<Box>>("POST", `/v1/sandboxes/${segment(id)}/forks`, { count: 1 }, { once: names.of("fork") }),
    onSettled: (_, error) => names.ended(error),
    onSuccess: (made) => made.items[0] && go(`/sandboxes/${made.items[0].id}`),
  });
  useSandboxKeys({
    canAct,
    checkpoint: checkpoint.mutate,
    fork: fork.mutate,
    focus: () => editor.current?.focus(),
    panel: (name) => set("panel", name),
    interrupt: () =>
      send("POST", `/v1/sandboxes/${segment(id)}/contexts/${segment(contextId)}/interrupt`).catch(
        () => undefined,
      ),
    step: (by) => {
      const list = cells.cells;
      const at = list.findIndex((cell) => cell.id === chosen);
      const next = list[at === -1 ? list.length - 1 : Math.min(list.length - 1, Math.max(0, at + by))];
      if (next) choose(next.id);
    },
  });
  const failed = checkpoint.error ?? fork.error ?? exportProblem;

  const inspector = (
    <Tabs.Root className="inspector" value={panel} onValueChange={(value) => set("panel", value)}>
      <Tabs.List className="tabs" aria-label="Inspector">
        {panels.map((name) => (
          <Tabs.Trigger key={name} value={name}>
            {NAMES[name]}
          </Tabs.Trigger>
        ))}
      </Tabs.List>
      <Tabs.Content value="variables" className="panel">
        <VariablesPanel
          sandboxId={id}
          contextId={contextId}
          numberOf={(execution) => positions.get(execution) ?? null}
          choose={choose}
        />
      </Tabs.Content>
      <Tabs.Content value="files" className="panel">
        <FilesPanel sandboxId={id} />
      </Tabs.Content>
      <Tabs.Content value="terminal" className="panel">
        <TerminalsPanel sandboxId={id} canAct={canAct} />
      </Tabs.Content>
      <Tabs.Content value="ports" className="panel">
        <PortsPanel sandboxId={id} canAct={canAct} />
      </Tabs.Content>
      <Tabs.Content value="network" className="panel">
        <NetworkPanel sandbox={sandbox} />
      </Tabs.Content>
      <Tabs.Content value="audit" className="panel">
        <AuditPanel sandboxId={id} />
      </Tabs.Content>
      <Tabs.Content value="isolation" className="panel">
        <Isolation sandbox={sandbox} />
      </Tabs.Content>
    </Tabs.Root>
  );

  return (
    <div className="page sandbox-page">
      <SandboxHead sandbox={sandbox} problem={problem}>
        {canAct && (
          <>
            <button type="button" disabled={checkpoint.isPending} onClick={() => checkpoint.mutate()}>
              Checkpoint <kbd>c</kbd>
            </button>
            <button type="button" disabled={fork.isPending} onClick={() => fork.mutate()}>
              Fork <kbd>f</kbd>
            </button>
            <Link className="button" href={`/sandboxes/${segment(id)}/branches`}>
              Branches
            </Link>
            <Link className="button" href={`/sandboxes/${segment(id)}/compare`}>
              Compare
            </Link>
          </>
        )}
        {mayAct && !isGone && (
          <Suspense>
            <ShareDialog sandboxId={id} contextId={contextId} />
          </Suspense>
        )}
        {!isGone && <Export sandboxId={id} contextId={contextId} failed={setExportProblem} />}
        {!isWide && <Sheet>{inspector}</Sheet>}
      </SandboxHead>
      {!!failed && <ProblemBox error={failed} />}
      <LiveLost />
      <Contexts
        sandboxId={id}
        chosen={contextId}
        choose={(name) => set("context", name === "default" ? null : name)}
        isThere={!isGone}
      />
      <Timeline
        sandboxId={id}
        contextId={contextId}
        cells={cells.cells}
        chosen={chosen}
        choose={choose}
        isThere={!isGone}
      />
      <div className="split">
        <div className="main-column">
          <Transcript
            sandboxId={id}
            cells={cells}
            chosen={chosen}
            choose={choose}
            runs={runs}
            reuse={
              canAct
                ? (code) => {
                    editor.current?.set(code);
                    editor.current?.focus();
                  }
                : null
            }
          />
          {canAct && (
            <Composer
              key={contextId}
              sandboxId={id}
              contextId={contextId}
              cells={cells.cells}
              isRunning={isRunning}
              ran={() => {
                setRuns((count) => count + 1);
                cells.refresh();
              }}
              handle={(made) => {
                editor.current = made;
              }}
            />
          )}
        </div>
        {isWide && inspector}
      </div>
    </div>
  );
}

type ContextsGiven = { sandboxId: string; chosen: string; choose: (name: string) => void; isThere: boolean };

function Contexts({ sandboxId, chosen, choose, isThere }: ContextsGiven) {
  const mayAct = useMayAct();
  const list = useQuery({
    queryKey: ["contexts", sandboxId],
    queryFn: ({ signal }) =>
      get<Page<{ id: string; language?: string }>>(`/v1/sandboxes/${segment(sandboxId)}/contexts`, signal),
    // They are asked of the guest.
    enabled: isThere && mayAct,
    retry: false,
  });
  const items = list.data?.items ?? [];
  if (items.length < 2) return null;
  return (
    <label className="row">
      Context
      <select value={chosen} onChange={(event) => choose(event.target.value)}>
        {items.map((each) => (
          <option key={each.id} value={each.id}>
            {visibleLine(each.id, 60)}
            {each.language && each.language !== "python" ? ` (${visibleLine(each.language, 20)})` : ""}
          </option>
        ))}
      </select>
    </label>
  );
}

/** On a narrow screen the inspector lies over the cells when it is asked for. */
function Sheet({ children }: { children: ReactNode }) {
  return (
    <Dialog.Root>
      <Dialog.Trigger asChild>
        <button type="button">Inspect</button>
      </Dialog.Trigger>
      <Dialog.Portal>
        <Dialog.Overlay className="overlay" />
        <Dialog.Content className="sheet" aria-describedby={undefined}>
          <div className="row">
            <Dialog.Title>Inspector</Dialog.Title>
            <Dialog.Close className="subtle">Close</Dialog.Close>
          </div>
          {children}
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}

type KeyActs = {
  canAct: boolean;
  checkpoint: () => void;
  fork: () => void;
  focus: () => void;
  interrupt: () => void;
  panel: (name: string) => void;
  step: (by: number) => void;
};

function useSandboxKeys(given: KeyActs): void {
  const latest = useRef(given);
  latest.current = given;
  const last = useRef(0);
  const keys = useMemo(() => {
    const acting = (act: () => void) => () => latest.current.canAct && act();
    const found: Record<string, () => void> = {
      c: acting(() => latest.current.checkpoint()),
      f: acting(() => latest.current.fork()),
      Enter: acting(() => latest.current.focus()),
      j: () => latest.current.step(1),
      k: () => latest.current.step(-1),
      i: acting(() => {
        const now = window.event?.timeStamp ?? performance.now();
        if (now - last.current < TWICE_MILLISECONDS) latest.current.interrupt();
        last.current = now;
      }),
    };
    PANELS.forEach((name, index) => {
      found[String(index + 1)] = () => latest.current.panel(name);
    });
    return found;
  }, []);
  useKeys(keys);
}
