/** Several pieces of code, each in a fork of its own from one moment, side by side; one of them can be kept. */

import { useMutation, useQuery } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { Link, useLocation, useSearchParams } from "wouter";
import { get, segment, send } from "../api/client";
import { asProblem } from "../api/problem";
import type { Cell, CellPage, Checkpoint, Execution, Page, Sandbox } from "../api/types";
import { useActNames } from "../parts/actName";
import { BackToSandbox } from "../parts/BackToSandbox";
import { Confirm } from "../parts/Confirm";
import { bytes, clock, seconds, visible, visibleLine } from "../parts/format";
import { ProblemBox } from "../parts/Problems";
import { ResultView } from "../results/ResultView";

const NOW = "now";
const MOST_WAYS = 8;
const MOST_LISTED = 1000;
const SHOWN_CHARACTERS = 2000;
const POLL_MILLISECONDS = 700;

export default function Branches({ id }: { id: string }) {
  const [search, setSearch] = useSearchParams();
  const wanted = forksOf(search.get("forks"));
  const path = `/v1/sandboxes/${segment(id)}`;
  const [, go] = useLocation();
  // An address can name any sandbox of its reader, and what is done here is done to all that are shown.
  const listed = useQuery({
    queryKey: ["forks", id, wanted],
    queryFn: ({ signal }) =>
      get<Page<Sandbox>>(`/v1/sandboxes?parent_id=${segment(id)}&limit=${MOST_LISTED}`, signal),
    enabled: wanted.length > 0,
    refetchOnWindowFocus: false,
    staleTime: Number.POSITIVE_INFINITY,
  });
  const forks = ownForks(wanted, listed.data?.items ?? []);
  const others = listed.data ? wanted.length - forks.length : 0;

  const keep = async (child: string) => {
    await send("POST", `${path}/adopt`, { child_id: child });
    await endAll(forks.filter((each) => each !== child));
  };

  return (
    <div className="page scrolling">
      <BackToSandbox id={id} />
      <h1>Several ways, side by side</h1>
      {listed.error && <ProblemBox error={listed.error} retry={() => listed.refetch()} />}
      {listed.isLoading && <div className="skeleton" />}
      {others > 0 && (
        <p className="quiet">
          {others} of the {wanted.length} in the address are not shown: they have ended, or are no forks of
          this sandbox.
        </p>
      )}
      {wanted.length > 0 && !listed.data ? null : forks.length === 0 ? (
        <Begin sandboxId={id} begun={(made) => setSearch({ forks: made.join(",") }, { replace: true })} />
      ) : (
        <>
          <Ways forks={forks} keep={keep} kept={() => go(`/sandboxes/${segment(id)}`)} />
          <div className="row end">
            <Confirm
              trigger={<button type="button">End all of them</button>}
              title={`End ${forks.length} forks?`}
              act="End them"
              run={() => endAll(forks)}
              done={() => setSearch({}, { replace: true })}
            >
              What they computed is lost. The sandbox itself is as it was.
            </Confirm>
          </div>
        </>
      )}
    </div>
  );
}

/** The forks of an address: at most as many as can be begun here. */
export function forksOf(value: string | null): string[] {
  return (value ?? "").split(",").filter(Boolean).slice(0, MOST_WAYS);
}

/** Those that are listed as forks of the sandbox, in the order of the address. */
export function ownForks(wanted: string[], listed: Sandbox[]): string[] {
  const own = new Set(listed.map((each) => each.id));
  return wanted.filter((each) => own.has(each));
}

/** Ends sandboxes; one that has ended already is none to end. */
async function endAll(ids: string[]): Promise<void> {
  const done = await Promise.allSettled(ids.map((each) => send("DELETE", `/v1/sandboxes/${segment(each)}`)));
  for (const one of done)
    if (one.status === "rejected" && ![404, 410].includes(asProblem(one.reason).status)) throw one.reason;
}

function Begin({ sandboxId, begun }: { sandboxId: string; begun: (made: string[]) => void }) {
  const [ways, setWays] = useState(["", ""]);
  const [from, setFrom] = useState(NOW);
  const path = `/v1/sandboxes/${segment(sandboxId)}`;
  const checkpoints = useQuery({
    queryKey: ["timeline", sandboxId, "checkpoints"],
    queryFn: ({ signal }) => get<Page<Checkpoint>>(`${path}/checkpoints`, signal),
    retry: false,
  });
  const wanted = ways.filter((code) => code.trim());
  const names = useActNames();
  const run = useMutation({
    mutationFn: async () => {
      const asked = { count: wanted.length, checkpoint_id: from === NOW ? null : from };
      const made = await send<Page<Sandbox>>("POST", `${path}/forks`, asked, {
        once: names.of(JSON.stringify(asked)),
      });
      names.ended(null);
      const ids = made.items.map((each) => each.id);
      try {
        await Promise.all(
          ids.map((each, index) =>
            send("POST", `/v1/sandboxes/${segment(each)}/executions`, {
              code: wanted[index],
              detached: true,
              tell_changes: true,
            }),
          ),
        );
      } catch (error) {
        // All of them run, or none is left behind.
        await endAll(ids).catch(() => undefined);
        throw error;
      }
      return ids;
    },
    onSuccess: begun,
    onError: (error) => names.ended(error),
  });

  return (
    <section className="card" aria-label="Ways">
      <p className="quiet">
        Each piece of code runs in a fork with the variables and files of one moment. The sandbox itself stays
        as it is until you keep one.
      </p>
      <label>
        From{" "}
        <select value={from} onChange={(event) => setFrom(event.target.value)}>
          <option value={NOW}>now</option>
          {checkpoints.data?.items.map((each) => (
            <option key={each.id} value={each.id}>
              {visibleLine(each.name || each.id, 40)}, {clock(each.created_at)}
            </option>
          ))}
        </select>
      </label>
      {ways.map((code, index) => (
        <label
          // biome-ignore lint/suspicious/noArrayIndexKey: ways are numbered
          key={index}
          className="way"
        >
          Way {index + 1}
          <textarea
            rows={4}
            spellCheck={false}
            value={code}
            onChange={(event) =>
              setWays(ways.map((each, place) => (place === index ? event.target.value : each)))
            }
          />
        </label>
      ))}
      {run.error && <ProblemBox error={run.error} again={() => run.mutate()} title="No way was begun" />}
      <div className="row end">
        <button
          type="button"
          disabled={ways.length >= MOST_WAYS}
          onClick={() => setWays((earlier) => [...earlier, ""])}
        >
          One more
        </button>
        <button
          type="button"
          className="primary"
          disabled={wanted.length === 0 || run.isPending}
          onClick={() => run.mutate()}
        >
          Run them side by side
        </button>
      </div>
    </section>
  );
}

type WaysGiven = { forks: string[]; keep: (child: string) => Promise<void>; kept: () => void };
type Asked = { text: string; isError: boolean };

function Ways({ forks, keep, kept }: WaysGiven) {
  const [expression, setExpression] = useState("");
  const ask = useMutation({
    mutationFn: async (code: string) => {
      const answers = await Promise.allSettled(
        forks.map((each) => send<Execution>("POST", `/v1/sandboxes/${segment(each)}/executions`, { code })),
      );
      return new Map(forks.map((each, index) => [each, answerOf(answers[index])]));
    },
  });

  return (
    <>
      <form
        className="row"
        onSubmit={(event) => {
          event.preventDefault();
          if (expression.trim()) ask.mutate(expression);
        }}
      >
        <label>
          An expression for all of them{" "}
          <input
            value={expression}
            spellCheck={false}
            onChange={(event) => setExpression(event.target.value)}
          />
        </label>
        <button type="submit" disabled={ask.isPending}>
          {ask.isPending ? "Computing…" : "Compute it in each"}
        </button>
      </form>
      <div className="sides">
        {forks.map((each, index) => (
          <Way key={each} number={index + 1} id={each} answer={ask.data?.get(each)} keep={keep} kept={kept} />
        ))}
      </div>
    </>
  );
}

/** The value of an expression in one fork, or why there is none. */
export function answerOf(settled: PromiseSettledResult<Execution> | undefined): Asked {
  if (settled?.status !== "fulfilled") return { text: asProblem(settled?.reason).message, isError: true };
  const { error, results } = settled.value;
  if (error) return { text: `${error.name}: ${error.value}`, isError: true };
  const main = results.find((each) => each.is_main_result);
  return { text: main?.text ?? "no value", isError: false };
}

type WayGiven = {
  number: number;
  id: string;
  answer: Asked | undefined;
  keep: (child: string) => Promise<void>;
  kept: () => void;
};

function Way({ number, id, answer, keep, kept }: WayGiven) {
  const path = `/v1/sandboxes/${segment(id)}`;
  const cell = useQuery({
    queryKey: ["way", id],
    queryFn: async ({ signal }) => {
      const [fork, page] = await Promise.all([
        get<Sandbox>(path, signal),
        get<CellPage>(`${path}/contexts/default/executions?limit=50&what=whole`, signal),
      ]);
      return firstOwn(page.items, fork.started_at);
    },
    refetchInterval: (query) =>
      query.state.error || query.state.data?.state === "ended" ? false : POLL_MILLISECONDS,
    retry: false,
  });
  const found = cell.data;

  return (
    <section className="card" aria-label={`Way ${number}`}>
      <div className="row">
        <h2>Way {number}</h2>
        <Link href={`/sandboxes/${segment(id)}`}>Open</Link>
        <Confirm
          trigger={
            <button type="button" disabled={found?.state !== "ended"}>
              Keep
            </button>
          }
          title={`Keep way ${number}?`}
          act="Keep it"
          run={() => keep(id)}
          done={kept}
        >
          This fork takes the place of the sandbox, under its id. What was there, and the other ways, are
          ended.
        </Confirm>
      </div>
      {answer && (
        <p className={answer.isError ? "hint" : "value"}>
          <code>{visibleLine(answer.text, 200)}</code>
        </p>
      )}
      {cell.error && <ProblemBox error={cell.error} />}
      {found && <Outcome cell={found} />}
    </section>
  );
}

/** The first cell that a fork has run itself: those of its parent began before it. */
export function firstOwn(cells: Cell[], startedAt: string): Cell | null {
  const from = Date.parse(startedAt);
  return cells.find((each) => each.started_at !== null && Date.parse(each.started_at) >= from) ?? null;
}

function Outcome({ cell }: { cell: Cell }) {
  const { usage, changes, execution, error } = cell;
  const main = execution?.results.find((each) => each.is_main_result) ?? execution?.results.at(-1);
  const printed = (execution?.logs.entries ?? []).map((each) => each.text).join("");
  const facts: ReactNode[] = [
    cell.state === "running" ? "it runs" : visibleLine(cell.outcome ?? "", 30),
    usage && seconds(usage.wall_seconds),
    usage && `cpu ${seconds(usage.user_cpu_seconds + usage.system_cpu_seconds)}`,
    usage?.peak_memory_bytes && bytes(usage.peak_memory_bytes),
    changes && `${changes.variables} variables, ${changes.files} files changed`,
  ];
  return (
    <>
      <pre className="plain-text">{visible(cell.code.slice(0, SHOWN_CHARACTERS))}</pre>
      <p className="quiet" role="status">
        {facts.filter(Boolean).join(" · ")}
      </p>
      {printed && <pre className="plain-text">{visible(printed.slice(-SHOWN_CHARACTERS))}</pre>}
      {error && (
        <p className="hint">
          {visibleLine(`${error.name}: ${error.value}`, 300)}
          {error.hint && ` ${visibleLine(error.hint, 300)}`}
        </p>
      )}
      {main && <ResultView result={main} />}
    </>
  );
}
