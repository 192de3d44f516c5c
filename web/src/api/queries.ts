/** What several views ask for, and what is asked for as soon as the page starts: beside who is logged in, not after it. */

import {
  type InvalidateOptions,
  type InvalidateQueryFilters,
  QueryClient,
  type QueryKey,
  queryOptions,
} from "@tanstack/react-query";
import { get, segment } from "./client";
import { type Place, placePath } from "./place";
import { asProblem } from "./problem";
import type { CellPage, Page, Sandbox } from "./types";

/** Cells of a page. */
export const PAGE_CELLS = 100;
const MOST_SANDBOXES = 1000;

/** Of the library's own, an invalidation joins a first request that is on its way: its answer may be older than the act. */
class FreshQueries extends QueryClient {
  override async invalidateQueries<Key extends QueryKey = QueryKey>(
    filters?: InvalidateQueryFilters<Key>,
    options?: InvalidateOptions,
  ): Promise<void> {
    const isFirst = ({ state }: { state: { data: unknown; fetchStatus: string } }) =>
      state.data === undefined && state.fetchStatus !== "idle";
    const key = filters?.queryKey === undefined ? {} : { queryKey: filters.queryKey };
    await this.cancelQueries({ ...key, predicate: isFirst });
    return super.invalidateQueries(filters, options);
  }
}

export const client = new FreshQueries({
  defaultOptions: {
    queries: {
      retry: (count, error) => count < 2 && asProblem(error).isPassing,
      refetchOnWindowFocus: true,
      staleTime: 1000,
    },
  },
});

/** Asks again so often; an answer that stays the same ends it, and no answer does not: the server may have restarted. */
export function whileItMayAnswer(
  milliseconds: number,
): (query: { state: { error: Error | null } }) => number | false {
  return ({ state }) => (state.error && !asProblem(state.error).isPassing ? false : milliseconds);
}

export const sandboxesQuery = queryOptions({
  queryKey: ["sandboxes"],
  queryFn: ({ signal }) =>
    get<Page<Sandbox>>(`/v1/sandboxes?with=use&order=-started&limit=${MOST_SANDBOXES}`, signal),
});

export function sandboxQuery(id: string) {
  return queryOptions({
    queryKey: ["sandbox", id],
    queryFn: ({ signal }) => get<Sandbox>(`/v1/sandboxes/${segment(id)}`, signal),
  });
}

export function cellsPath(place: Place, sandboxId: string, contextId: string): string {
  return `${placePath(place, sandboxId)}/contexts/${segment(contextId)}/executions`;
}

export function cellsQuery(place: Place, sandboxId: string, contextId: string) {
  return queryOptions({
    queryKey: ["cells", place === "records" ? `record ${sandboxId}` : sandboxId, contextId],
    queryFn: ({ signal }) =>
      get<CellPage>(`${cellsPath(place, sandboxId, contextId)}?limit=${PAGE_CELLS}`, signal),
  });
}

/** The id of the sandbox that an address shows; null: it shows another view, or nothing that can be read. */
export function sandboxAt(pathname: string): string | null {
  const [, id] = /^\/console\/sandboxes\/([^/]+)$/.exec(pathname) ?? [];
  try {
    return id ? decodeURIComponent(id) : null;
  } catch {
    // A percent sign that begins no escape: the view asks for it as it stands.
    return null;
  }
}

/** Asks for what the view at an address shows first; what is refused, the view asks for again and says so. */
export function askEarly({ pathname, search }: Pick<Location, "pathname" | "search">): void {
  const id = sandboxAt(pathname);
  if (id !== null) {
    client.prefetchQuery(sandboxQuery(id));
    client.prefetchQuery(
      cellsQuery("sandboxes", id, new URLSearchParams(search).get("context") ?? "default"),
    );
  } else if (/^\/console\/(sandboxes)?$/.test(pathname)) client.prefetchQuery(sandboxesQuery);
}
