/** The sandboxes that have ended and whose records are kept, the latest end first. */

import { useInfiniteQuery } from "@tanstack/react-query";
import { useDeferredValue, useMemo, useRef, useState } from "react";
import { Link } from "wouter";
import { get, segment } from "../api/client";
import type { EndedSandbox, RecordList } from "../api/records";
import { bytes, seconds, shortId, since, visibleLine } from "../parts/format";
import { useKeys, useNow } from "../parts/hooks";
import { Empty, ProblemBox } from "../parts/Problems";

const PAGE = 100;

export default function Records() {
  const [words, setWords] = useState("");
  const wanted = useDeferredValue(words.trim());
  const filter = useRef<HTMLInputElement>(null);
  useKeys(useMemo(() => ({ "/": () => filter.current?.focus() }), []));
  const list = useInfiniteQuery({
    queryKey: ["records", wanted],
    queryFn: ({ signal, pageParam }) =>
      get<RecordList>(
        `/v1/records?limit=${PAGE}&q=${segment(wanted.slice(0, 60))}${pageParam && `&cursor=${segment(pageParam)}`}`,
        signal,
      ),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    placeholderData: (earlier) => earlier,
    refetchInterval: 10_000,
  });
  const pages = list.data?.pages ?? [];
  const items = pages.flatMap((page) => page.items);
  const leftOut = pages[0]?.left_out_hosts ?? [];
  const isKept = leftOut.length > 0 || (pages[0]?.is_kept ?? true);

  return (
    <div className="page scrolling">
      <div className="head">
        <h1>Records</h1>
        <span className="quiet" role="status">
          {list.data ? `${items.length}${list.hasNextPage ? " and more" : ""}` : ""}
        </span>
        <input
          ref={filter}
          type="search"
          placeholder="Filter by id, label, template, reason  /"
          aria-label="Filter"
          value={words}
          onChange={(event) => setWords(event.target.value)}
        />
      </div>
      {list.error && <ProblemBox error={list.error} retry={() => list.refetch()} />}
      {leftOut.length > 0 && (
        <p className="quiet" role="status">
          Without the records of machines that do not answer: {leftOut.join(", ")}
        </p>
      )}
      {list.isPending && <div className="skeleton" />}
      {list.data && items.length === 0 && (
        <Empty
          title={
            isKept
              ? wanted
                ? "No record fits this filter."
                : "No sandbox has ended yet."
              : "This server keeps no records."
          }
        >
          <p>
            {isKept
              ? "What ran in a sandbox stays here for a time after its end."
              : "Start it with --records keep, and what ran in a sandbox stays here for a time after its end."}
          </p>
        </Empty>
      )}
      {items.length > 0 && <Table items={items} />}
      {list.hasNextPage && (
        <button type="button" disabled={list.isFetchingNextPage} onClick={() => list.fetchNextPage()}>
          Show older ones
        </button>
      )}
    </div>
  );
}

function Table({ items }: { items: EndedSandbox[] }) {
  const now = useNow();
  return (
    <div className="wide-table">
      <table className="plain">
        <thead>
          <tr>
            {["Sandbox", "Key", "Ended", "Reason", "Cells", "CPU", "Most memory", "Kept"].map((name) => (
              <th scope="col" key={name}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {items.map((ended) => (
            <Row key={ended.sandbox.id} ended={ended} now={now} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ ended, now }: { ended: EndedSandbox; now: number }) {
  const { sandbox } = ended;
  const labels = Object.entries(sandbox.metadata);
  return (
    <tr>
      <th scope="row">
        <Link href={`/records/${segment(sandbox.id)}`} title={sandbox.id}>
          <code>{shortId(sandbox.id)}</code>
        </Link>
        <p className="quiet">
          {visibleLine(sandbox.template, 40)}
          {labels.map(([name, value]) => ` · ${visibleLine(name, 30)}=${visibleLine(String(value), 30)}`)}
        </p>
      </th>
      <td>{shortId(sandbox.owner)}</td>
      <td>
        <time dateTime={ended.ended_at} title={ended.ended_at}>
          {since(ended.ended_at, now)} ago
        </time>
      </td>
      <td>{visibleLine(ended.reason, 30)}</td>
      <td>
        {ended.cells}
        {ended.failed > 0 && <span className="bad">, {ended.failed} failed</span>}
      </td>
      <td className="number">{seconds(ended.cpu_seconds)}</td>
      <td className="number">{bytes(ended.peak_memory_bytes)}</td>
      <td className="number">{bytes(ended.size_bytes)}</td>
    </tr>
  );
}
