/** The living sandboxes: what each is, what it uses, when it ends. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useDeferredValue, useMemo, useRef, useState } from "react";
import { Link, useLocation } from "wouter";
import { send } from "../api/client";
import { sandboxesQuery } from "../api/queries";
import type { Sandbox } from "../api/types";
import { useFollow, useWatchState } from "../api/watch";
import { useActNames } from "../parts/actName";
import { Confirm } from "../parts/Confirm";
import { bytes, shortId, visibleLine } from "../parts/format";
import { useKeys } from "../parts/hooks";
import { Empty, ProblemBox } from "../parts/Problems";
import { useMayAct } from "../parts/rights";
import { State } from "../parts/State";
import { Age, TimeLeft } from "../parts/Times";

const ROW_HEIGHT = 52;

export function Sandboxes() {
  const [, go] = useLocation();
  const queries = useQueryClient();
  const mayAct = useMayAct();
  const [words, setWords] = useState("");
  const wanted = useDeferredValue(words.trim());
  const filter = useRef<HTMLInputElement>(null);
  const isLive = useWatchState() === "open";
  const soon = useRef<ReturnType<typeof setTimeout> | null>(null);
  useFollow("server", undefined, (event) => {
    if (!event.type.startsWith("sandbox_") && event.type !== "gap") return;
    soon.current ??= setTimeout(() => {
      soon.current = null;
      queries.invalidateQueries({ queryKey: ["sandboxes"] });
    }, 200);
  });
  const list = useQuery({
    ...sandboxesQuery,
    // Use changes all the time; what begins and ends is said by the socket.
    refetchInterval: isLive ? 5000 : 2000,
  });
  const names = useActNames();
  const make = useMutation({
    mutationFn: () => send<Sandbox>("POST", "/v1/sandboxes", {}, { once: names.of("new") }),
    onSuccess: (made) => go(`/sandboxes/${made.id}`),
    onSettled: (_, error) => {
      names.ended(error);
      queries.invalidateQueries({ queryKey: ["sandboxes"] });
    },
  });
  useKeys(useMemo(() => ({ "/": () => filter.current?.focus() }), []));
  const items = useMemo(
    () => (list.data?.items ?? []).filter((item) => fits(item, wanted.toLowerCase())),
    [list.data, wanted],
  );

  return (
    <div className="page">
      <div className="head">
        <h1>Sandboxes</h1>
        <span className="quiet" role="status">
          {list.data ? `${items.length}${list.data.next_cursor ? " and more" : ""}` : ""}
        </span>
        <input
          ref={filter}
          type="search"
          placeholder="Filter by id, label, template  /"
          aria-label="Filter"
          value={words}
          onChange={(event) => setWords(event.target.value)}
        />
        {mayAct && (
          <button type="button" className="primary" disabled={make.isPending} onClick={() => make.mutate()}>
            {make.isPending ? "Making…" : "New sandbox"}
          </button>
        )}
      </div>
      {make.error && (
        <ProblemBox error={make.error} again={() => make.mutate()} title="No sandbox was made" />
      )}
      {list.error && !list.data && <ProblemBox error={list.error} retry={() => list.refetch()} />}
      {list.error && list.data && (
        <p className="stale" role="status">
          Not up to date: the server did not answer. As of {new Date(list.dataUpdatedAt).toLocaleTimeString()}
          .
        </p>
      )}
      {list.data && items.length === 0 && (
        <Empty title={wanted ? "No sandbox fits this filter." : "No sandbox lives now."}>
          <p>
            {wanted
              ? "The filter looks at ids, templates, labels and keys."
              : "Make one here, or from Python:"}
          </p>
          {!wanted && (
            <pre className="sample" tabIndex={0}>{`from fumehood import Sandbox

with Sandbox(url="${location.origin}", api_key=...) as sandbox:
    print(sandbox.run_code("6 * 7").text)`}</pre>
          )}
        </Empty>
      )}
      {items.length > 0 && <Table items={items} isStale={!!list.error} />}
    </div>
  );
}

function fits(sandbox: Sandbox, words: string): boolean {
  const { id, template, owner, state, metadata } = sandbox;
  const labels = Object.entries(metadata).map(([name, value]) => `${name}=${value}`);
  return [id, template, owner, state, ...labels].some((text) => text.toLowerCase().includes(words));
}

function Table({ items, isStale }: { items: Sandbox[]; isStale: boolean }) {
  const scroller = useRef<HTMLDivElement>(null);
  const rows = useVirtualizer({
    count: items.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_HEIGHT,
    overscan: 12,
    getItemKey: (index) => items[index]?.id ?? index,
  });

  return (
    <div
      className={isStale ? "table dimmed" : "table"}
      role="table"
      aria-rowcount={items.length + 1}
      aria-label="Sandboxes"
      ref={scroller}
      tabIndex={0}
    >
      <div role="rowgroup" className="table-head">
        <div role="row" className="sandbox-row" aria-rowindex={1}>
          {["State", "Sandbox", "Key", "Cells", "Memory", "Network", "Age", "Ends in", ""].map((name) => (
            <div role="columnheader" key={name || "acts"}>
              {name || <span className="unseen">Acts</span>}
            </div>
          ))}
        </div>
      </div>
      <div role="rowgroup" style={{ height: rows.getTotalSize(), position: "relative" }}>
        {rows.getVirtualItems().map((row) => {
          const item = items[row.index];
          return item && <Row key={item.id} sandbox={item} top={row.start} index={row.index + 2} />;
        })}
      </div>
    </div>
  );
}

type RowGiven = { sandbox: Sandbox; top: number; index: number };

/** Rendered anew only where its sandbox has changed: what is read again and is the same stays the same object. */
const Row = memo(function Row({ sandbox, top, index }: RowGiven) {
  const { use, limits } = sandbox;
  const mayAct = useMayAct();
  const memory = limits.memory_bytes ?? null;
  const labels = Object.entries(sandbox.metadata);

  return (
    <div
      role="row"
      className="sandbox-row"
      aria-rowindex={index}
      style={{ transform: `translateY(${top}px)`, height: ROW_HEIGHT }}
    >
      <div role="cell">
        <State state={use?.is_running ? "working" : sandbox.state} />
      </div>
      <div role="cell" className="wide">
        <Link href={`/sandboxes/${sandbox.id}`} title={sandbox.id}>
          <code>{shortId(sandbox.id)}</code>
        </Link>
        <span className="quiet labels">
          {visibleLine(sandbox.template, 40)}
          {sandbox.parent_id && ` · fork of ${shortId(sandbox.parent_id)}`}
          {labels.map(([name, value]) => ` · ${visibleLine(name, 30)}=${visibleLine(String(value), 30)}`)}
        </span>
      </div>
      <div role="cell">{shortId(sandbox.owner)}</div>
      <div role="cell">
        {use ? use.cells : "–"}
        {use?.last_outcome && use.last_outcome !== "ok" && use.last_outcome !== "running" && (
          <span className="bad"> {visibleLine(use.last_outcome, 20)}</span>
        )}
      </div>
      <div role="cell">
        {use && use.memory_bytes !== null ? <Bar value={use.memory_bytes} of={memory} label="Memory" /> : "–"}
      </div>
      <div role="cell">{networkWord(sandbox)}</div>
      <div role="cell">
        <Age at={sandbox.started_at} />
      </div>
      <div role="cell">
        <TimeLeft until={sandbox.ends_at} />
      </div>
      <div role="cell">{mayAct && <KillButton sandbox={sandbox} />}</div>
    </div>
  );
});

function KillButton({ sandbox }: { sandbox: Sandbox }) {
  const queries = useQueryClient();
  return (
    <Confirm
      trigger={
        <button type="button" className="subtle" aria-label={`Kill ${sandbox.id}`}>
          Kill
        </button>
      }
      title={`Kill ${shortId(sandbox.id)}?`}
      act="Kill"
      run={() => send("DELETE", `/v1/sandboxes/${sandbox.id}`)}
      done={() => queries.invalidateQueries({ queryKey: ["sandboxes"] })}
    >
      Its variables, files and checkpoints are lost. This cannot be undone.
    </Confirm>
  );
}

export function networkWord(sandbox: Sandbox): string {
  const { network } = sandbox;
  if (network.internet) return "internet";
  const rules = network.allow.length + network.presets.length + Object.keys(network.hosts).length;
  return rules > 0 ? "listed" : "none";
}

export function Bar({ value, of, label }: { value: number; of: number | null; label: string }) {
  const share = of ? Math.min(1, value / of) : 0;
  return (
    <span className="bar-of">
      <span>{bytes(value)}</span>
      {of !== null && (
        <meter
          min={0}
          max={1}
          high={0.9}
          value={share}
          aria-label={`${label}: ${bytes(value)} of ${bytes(of)}`}
          title={`of ${bytes(of)}`}
        />
      )}
    </span>
  );
}
