/** The cells of a context, in pages from the newest, read anew every two seconds. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useState } from "react";
import { get, segment } from "../api/client";
import { Feed } from "../api/feed";
import type { Cell, CellPage } from "../api/types";

const PAGE = 100;
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

export function useCells(sandboxId: string, contextId: string, isThere: boolean): Cells {
  const queries = useQueryClient();
  const [feed] = useState(() => new Feed());
  const [older, setOlder] = useState<Cell[]>([]);
  const isLive = false;
  const path = `/v1/sandboxes/${segment(sandboxId)}/contexts/${segment(contextId)}/executions`;
  const newest = useQuery({
    queryKey: ["cells", sandboxId, contextId],
    queryFn: ({ signal }) => get<CellPage>(`${path}?limit=${PAGE}`, signal),
    enabled: isThere,
    refetchInterval: POLL_MILLISECONDS,
    refetchIntervalInBackground: false,
  });

  // biome-ignore lint/correctness/useExhaustiveDependencies: another context has cells of its own
  useEffect(() => setOlder([]), [path]);

  const cells = useMemo(() => joined(older, newest.data?.items ?? []), [older, newest.data]);
  const first = cells[0]?.position ?? 0;
  const hasOlder = first > (newest.data?.first_position ?? 0);
  const loadOlder = useCallback(async () => {
    const page = await get<CellPage>(`${path}?before=${first}&limit=${PAGE}`);
    setOlder((known) => joined(page.items, known));
  }, [path, first]);
  const refresh = useCallback(
    () => queries.invalidateQueries({ queryKey: ["cells", sandboxId] }),
    [queries, sandboxId],
  );

  return { cells, page: newest.data, error: newest.error, feed, isLive, hasOlder, loadOlder, refresh };
}

function joined(older: Cell[], newer: Cell[]): Cell[] {
  const first = newer[0]?.position ?? Number.POSITIVE_INFINITY;
  return [...older.filter((cell) => cell.position < first), ...newer];
}
