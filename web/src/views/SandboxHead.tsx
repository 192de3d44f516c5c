/** The head of a sandbox: what it is, how it is, how long it has, and the acts on the whole of it. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { lazy, type ReactNode, Suspense } from "react";
import { Link, useLocation } from "wouter";
import { get, send } from "../api/client";
import { asProblem } from "../api/problem";
import { whileItMayAnswer } from "../api/queries";
import type { Sandbox, Use } from "../api/types";
import { useWatchState } from "../api/watch";
import { Confirm } from "../parts/Confirm";
import { duration, seconds, shortId, visible, visibleLine } from "../parts/format";
import { useNow } from "../parts/hooks";
import { ProblemBox } from "../parts/Problems";
import { useMayAct } from "../parts/rights";
import { State } from "../parts/State";
import { Family } from "./Family";
import { Bar, networkWord } from "./Sandboxes";

const Labels = lazy(() => import("./Labels"));
const MORE_SECONDS = 300;

export function SandboxHead({
  sandbox,
  problem,
  children,
}: {
  sandbox: Sandbox;
  problem: unknown;
  children?: ReactNode;
}) {
  const now = useNow();
  const mayAct = useMayAct();
  const queries = useQueryClient();
  const [, go] = useLocation();
  const isGone = problem !== null && [404, 410].includes(asProblem(problem).status);
  const changed = () => queries.invalidateQueries({ queryKey: ["sandbox", sandbox.id] });
  const left = sandbox.ends_at ? (Date.parse(sandbox.ends_at) - now) / 1000 : null;
  const more = useMutation({
    mutationFn: () =>
      send("POST", `/v1/sandboxes/${sandbox.id}/timeout`, {
        timeout_seconds: Math.ceil(Math.max(0, left ?? 0) + MORE_SECONDS),
      }),
    onSettled: changed,
  });
  const resume = useMutation({
    mutationFn: () => send("POST", `/v1/sandboxes/${sandbox.id}/resume`, {}),
    onSettled: changed,
  });
  const pause = useMutation({
    mutationFn: () => send("POST", `/v1/sandboxes/${sandbox.id}/pause`, {}),
    onSettled: changed,
  });
  const acts = [more, resume, pause];
  const failed = acts.find((act) => act.error);

  return (
    <section className="sandbox-head" aria-label="Sandbox">
      <div className="head">
        <h1>
          <Link href="/sandboxes" className="quiet">
            Sandboxes
          </Link>{" "}
          <span aria-hidden="true" className="quiet">
            ▸
          </span>{" "}
          <code title={sandbox.id}>{shortId(sandbox.id)}</code>
        </h1>
        <State state={isGone ? "gone" : sandbox.state} />
        {!isGone && left !== null && (
          <span className={left < 60 ? "bad" : "quiet"}>ends in {duration(left)}</span>
        )}
        {!isGone && left === null && <span className="quiet">no end</span>}
        {mayAct && !isGone && left !== null && (
          <button type="button" disabled={more.isPending} onClick={() => more.mutate()}>
            +5 min
          </button>
        )}
        <span className="acts">
          {children}
          {mayAct && !isGone && (
            <Suspense>
              <Labels sandbox={sandbox} changed={changed} />
            </Suspense>
          )}
          {mayAct && !isGone && sandbox.state === "running" && (
            <button type="button" disabled={pause.isPending} onClick={() => pause.mutate()}>
              Pause
            </button>
          )}
          {mayAct && !isGone && (
            <Confirm
              trigger={
                <button type="button" className="kill">
                  Kill
                </button>
              }
              title={`Kill ${shortId(sandbox.id)}?`}
              act="Kill"
              run={() => send("DELETE", `/v1/sandboxes/${sandbox.id}`)}
              done={() => go("/sandboxes")}
            >
              Its variables, files and checkpoints are lost. This cannot be undone.
            </Confirm>
          )}
        </span>
      </div>
      <Facts sandbox={sandbox} isLive={!isGone && sandbox.state === "running"} isGone={isGone} />
      {isGone && (
        <div className="banner bad-banner" role="status">
          <strong>This sandbox has ended.</strong> {visible(asProblem(problem).message)} What was read before
          stays on this page.
        </div>
      )}
      {!isGone && sandbox.state === "paused" && (
        <div className="banner" role="status">
          <strong>Paused.</strong> Nothing runs in it, and this page does not wake it.{" "}
          {mayAct && (
            <button type="button" disabled={resume.isPending} onClick={() => resume.mutate()}>
              Resume
            </button>
          )}
        </div>
      )}
      {!isGone && problem !== null && (
        <p className="stale" role="status">
          Not up to date: {visible(asProblem(problem).message)}
        </p>
      )}
      {failed && <ProblemBox error={failed.error} />}
    </section>
  );
}

function Facts({ sandbox, isLive, isGone }: { sandbox: Sandbox; isLive: boolean; isGone: boolean }) {
  const isWatched = useWatchState() === "open";
  const use = useQuery({
    queryKey: ["use", sandbox.id],
    queryFn: ({ signal }) => get<Use>(`/v1/sandboxes/${sandbox.id}/use`, signal),
    enabled: isLive,
    refetchInterval: (query) => (isWatched ? false : whileItMayAnswer(3000)(query)),
    retry: false,
  });
  const used = use.data;
  const { layers, level } = sandbox.isolation;
  const on = layers.filter((layer) => layer.state === "on").length;

  return (
    <dl className="facts">
      <Fact name="Memory">
        {used && used.memory_bytes !== null ? (
          <Bar value={used.memory_bytes} of={sandbox.limits.memory_bytes ?? null} label="Memory" />
        ) : (
          "–"
        )}
      </Fact>
      <Fact name="CPU used">{used ? seconds(used.cpu_seconds) : "–"}</Fact>
      {used && <Fact name="Processes">{used.processes}</Fact>}
      {used && used.watchers > 1 && <Fact name="Watching">{used.watchers}</Fact>}
      <Fact name="Isolation">
        {level}, {on} of {layers.length} layers
      </Fact>
      <Fact name="Network">{networkWord(sandbox)}</Fact>
      <Fact name="Template">{visibleLine(sandbox.template, 60)}</Fact>
      <Fact name="Key">{shortId(sandbox.owner)}</Fact>
      {sandbox.parent_id && (
        <Fact name="Fork of">
          <Link href={`/sandboxes/${sandbox.parent_id}`}>
            <code>{shortId(sandbox.parent_id)}</code>
          </Link>
        </Fact>
      )}
      {!isGone && (
        <Fact name="Family">
          <Family sandboxId={sandbox.id} />
        </Fact>
      )}
      {Object.entries(sandbox.metadata).map(([name, value]) => (
        <Fact key={name} name={visibleLine(name, 40)}>
          {visibleLine(String(value), 80)}
        </Fact>
      ))}
    </dl>
  );
}

function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
