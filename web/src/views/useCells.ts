/** The cells of a context, in pages from the newest, kept up to date by what is watched. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { get } from "../api/client";
import { Feed } from "../api/feed";
import type { Place } from "../api/place";
import { cellsPath, cellsQuery, PAGE_CELLS } from "../api/queries";
import { isShare } from "../api/reader";
import type { Cell, CellPage } from "../api/types";
import { useFollow, useWatchState, type WatchEvent } from "../api/watch";

const POLL_MILLISECONDS = 2000;

export type Cells = {
  cells: Cell[];
  page: CellPage | undefined;
  error: unknown;
  feed: Feed;
  isLive: boolean;
  hasOlder: boolean;
  loadOlder: () => Promise<void>;
  refresh: () => void;
};

export function useCells(
  sandboxId: string,
  contextId: string,
  isThere: boolean,
  place: Place = "sandboxes",
): Cells {
  const isKept = place === "records";
  const queries = useQueryClient();
  const [feed] = useState(() => new Feed());
  const [older, setOlder] = useState<Cell[]>([]);
  const isLive = useWatchState() === "open" || isKept;
  const path = cellsPath(place, sandboxId, contextId);
  const newest = useQuery({
    ...cellsQuery(place, sandboxId, contextId),
    enabled: isThere,
    // The socket says when there is something new.
    refetchInterval: isLive ? false : POLL_MILLISECONDS,
    refetchIntervalInBackground: false,
  });

  // biome-ignore lint/correctness/useExhaustiveDependencies: another context has cells of its own
  useEffect(() => setOlder([]), [path]);

  const pending = useRef(new Map<string, ReturnType<typeof setTimeout>>());
  const soon = useCallback(
    (key: readonly string[], milliseconds = 60) => {
      const name = key.join(" ");
      if (pending.current.has(name)) return;
      const ask = () => {
        // An answer that is on its way is let come: asked for again and again it would never be there.
        if (queries.isFetching({ queryKey: key }) > 0) {
          pending.current.set(name, setTimeout(ask, milliseconds));
          return;
        }
        pending.current.delete(name);
        queries.invalidateQueries({ queryKey: key });
      };
      pending.current.set(name, setTimeout(ask, milliseconds));
    },
    [queries],
  );

  useFollow(
    "sandbox",
    sandboxId,
    (event: WatchEvent) => {
      feed.take(event);
      if (event.type === "metrics") queries.setQueryData(["use", sandboxId], event.metrics);
      for (const key of staleAfter(event, sandboxId)) soon(key);
      // What happened between the first look and the beginning of the watch, no event says.
      if (event.type === "here")
        for (const { id, state } of newest.data?.items ?? [])
          if (state === "running") soon(["cell", sandboxId, id]);
    },
    { isOn: isThere && !isKept, metrics: true },
  );

  const cells = useMemo(() => joined(older, newest.data?.items ?? []), [older, newest.data]);
  const first = cells[0]?.position ?? 0;
  const hasOlder = first > (newest.data?.first_position ?? 0);
  const loadOlder = useCallback(async () => {
    const page = await get<CellPage>(`${path}?before=${first}&limit=${PAGE_CELLS}`);
    setOlder((known) => joined(page.items, known));
  }, [path, first]);
  const refresh = useCallback(
    () => queries.invalidateQueries({ queryKey: ["cells", sandboxId] }),
    [queries, sandboxId],
  );

  return { cells, page: newest.data, error: newest.error, feed, isLive, hasOlder, loadOlder, refresh };
}

/** What an event makes stale. */
function staleAfter(event: WatchEvent, id: string): (readonly string[])[] {
  const execution = String(event.execution_id ?? "");
  switch (event.type) {
    case "output":
    case "metrics":
      return [];
    case "here":
      // A share's socket begins with what happens now; what a page missed, it reads.
      return isShare()
        ? [
            ["cells", id],
            ["cell", id],
          ]
        : [["cells", id]];
    case "execution_started":
      return [["cells", id]];
    case "result":
    case "clear_output":
    case "error":
    case "tool_call":
      return [["cell", id, execution]];
    case "input_request":
    case "commit_request":
      return [
        ["cells", id],
        ["cell", id, execution],
      ];
    case "execution_finished":
      return [
        ["cells", id],
        ["cell", id, execution],
        ["variables", id],
        ["files", id],
        ["timeline", id],
      ];
    case "changed":
    case "ended":
      return [["sandbox", id]];
    case "egress":
      return [["egress", id]];
    case "security_event":
      return [
        ["metrics", id],
        ["timeline", id],
      ];
    case "context_made":
    case "context_removed":
    case "context_restarted":
      return [
        ["contexts", id],
        ["cells", id],
        ["variables", id],
      ];
    case "gap":
      return [
        ["cells", id],
        ["cell", id],
        ["timeline", id],
        ["variables", id],
        ["sandbox", id],
      ];
    default:
      return [
        ["cells", id],
        ["timeline", id],
        ["variables", id],
        ["sandbox", id],
        ["files", id],
      ];
  }
}

function joined(older: Cell[], newer: Cell[]): Cell[] {
  const first = newer[0]?.position ?? Number.POSITIVE_INFINITY;
  return [...older.filter((cell) => cell.position < first), ...newer];
}
