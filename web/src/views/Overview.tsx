/** The server at a glance, for who operates it: how full it is, what it did, and what needs eyes. */

import { useQueries, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { Link } from "wouter";
import { get, segment } from "../api/client";
import type * as api from "../api/schema";
import type { Bound, Me, Page, Sandbox } from "../api/types";
import { bytes, clock, shortId, visibleLine } from "../parts/format";
import { Empty, ProblemBox } from "../parts/Problems";
import { ChartView } from "../results/ChartView";
import { readChart } from "../results/chart";
import { BoundView } from "./Keys";

export type Capacity = Omit<
  api.Capacity,
  "host_id" | "incarnation" | "version" | "isolation_level" | "is_warm" | "pool_hits" | "pool_misses"
>;
type QueueState = api.QueueAnswer;
type Used = Pick<api.UsageItem, "start" | "executions" | "errors">;
export type Key = Pick<api.Key, "id" | "name" | "revoked_at" | "policy">;
export type KeyUse = Record<string, Bound>;
type EventCounts = api.SecurityEventCounts;
export type Concern = { key: string; words: string; path: string };

const REFRESH_MILLISECONDS = 5000;
// Of what takes the server longer to tell: a thousand sandboxes with their use, and the use of each key.
const SLOW_REFRESH_MILLISECONDS = 15_000;
const MOST_SANDBOXES = 1000;
const MOST_KEYS = 50;
const MOST_RECENT = 10;
const QUOTAS = [
  "max_sandboxes",
  "max_concurrent_executions",
  "executions_per_day",
  "cpu_seconds_per_day",
] as const;
const DAY_MILLISECONDS = 86_400_000;
// From this part of a limit on, somebody should know.
const NEAR = 0.9;

export default function Overview({ me }: { me: Me }) {
  const host = useAsked<Capacity>("capacity", "/v1/capacity");
  const queue = useAsked<QueueState>("queue", "/v1/queue");
  const boxes = useAsked<Page<Sandbox>>(
    "sandboxes",
    `/v1/sandboxes?with=use&order=-started&limit=${MOST_SANDBOXES}`,
    true,
    SLOW_REFRESH_MILLISECONDS,
  );
  const keys = useAsked<Page<Key>>("keys", "/v1/keys");
  const events = useAsked<EventCounts>("security-events", "/v1/security-events", me.is_owner);
  const usage = useQuery({
    queryKey: ["usage", "overview"],
    queryFn: ({ signal }) => {
      const from = new Date(Date.now() - DAY_MILLISECONDS).toISOString();
      return get<Page<Used>>(`/v1/usage?by=hour&since=${segment(from)}`, signal);
    },
    refetchInterval: 30_000,
  });
  const bounded = (keys.data?.items ?? []).filter(hasQuotas).slice(0, MOST_KEYS);
  const uses = useQueries({
    queries: bounded.map((key) => ({
      queryKey: ["keys", key.id, "use"],
      queryFn: ({ signal }: { signal: AbortSignal }) =>
        get<KeyUse>(`/v1/keys/${segment(key.id)}/use`, signal),
      refetchInterval: SLOW_REFRESH_MILLISECONDS,
      retry: false,
    })),
  });
  const used = new Map(bounded.map((key, index) => [key, uses[index]?.data]));
  const sandboxes = boxes.data?.items ?? [];
  const concerns = concernsOf(host.data, sandboxes, used);

  return (
    <div className="page scrolling">
      <h1>Overview</h1>
      {host.error && (
        <ProblemBox error={host.error} retry={() => host.refetch()} title="The host does not answer" />
      )}
      {queue.error && <ProblemBox error={queue.error} retry={() => queue.refetch()} />}
      <section className="card" aria-label="Now">
        <h2>Now</h2>
        {host.isPending && queue.isPending && <div className="skeleton" />}
        <dl className="bounds">
          {host.data && (
            <>
              <BoundView
                name="Sandboxes"
                of={{ used: host.data.sandboxes, maximum: host.data.max_sandboxes }}
              />
              <Figure name="Memory" value={memoryOf(host.data)} />
              <Figure
                name="Load"
                value={`${host.data.load.toFixed(1)} on ${host.data.cpu_cores} processors`}
              />
              <Figure name="Ready in the pool" value={host.data.pool_ready.toLocaleString()} />
            </>
          )}
          {queue.data && (
            <>
              <BoundView
                name="Stateless runs"
                of={{ used: queue.data.running, maximum: queue.data.places }}
              />
              <BoundView name="Waiting" of={{ used: queue.data.waiting, maximum: queue.data.capacity }} />
              <Figure name="Refused since the start" value={queue.data.refused.toLocaleString()} />
            </>
          )}
          {events.data?.are_counted && (
            <Figure
              name="Security events since the start"
              value={events.data.items.reduce((sum, each) => sum + each.count, 0).toLocaleString()}
            />
          )}
        </dl>
      </section>
      <section className="card" aria-label="What needs eyes">
        <h2>What needs eyes</h2>
        {concerns.length === 0 ? (
          <p className="quiet">Nothing now.</p>
        ) : (
          <ul>
            {concerns.map((each) => (
              <li key={each.key}>
                <Link href={each.path}>{each.words}</Link>
              </li>
            ))}
          </ul>
        )}
      </section>
      <LastDay items={usage.data?.items ?? []} error={usage.error} retry={() => usage.refetch()} />
      <Recent sandboxes={sandboxes} error={boxes.error} retry={() => boxes.refetch()} />
    </div>
  );
}

function useAsked<T>(name: string, path: string, isWanted = true, every = REFRESH_MILLISECONDS) {
  return useQuery({
    queryKey: [name],
    queryFn: ({ signal }) => get<T>(path, signal),
    refetchInterval: every,
    enabled: isWanted,
  });
}

/** Whether a key that has not ended has a quota that it can come near to. */
export function hasQuotas({ revoked_at, policy }: Key): boolean {
  return revoked_at === null && QUOTAS.some((name) => (policy[name] ?? null) !== null);
}

/** What somebody should look at: the host, sandboxes at a limit or held back, keys near a quota. */
export function concernsOf(
  host: Capacity | undefined,
  sandboxes: Sandbox[],
  keys: Map<Key, KeyUse | undefined>,
): Concern[] {
  const found: Concern[] = [];
  if (host?.is_draining)
    found.push({ key: "draining", words: "The host is draining: no new sandboxes.", path: "/queue" });
  if (host?.cold_reason)
    found.push({ key: "cold", words: visibleLine(host.cold_reason, 200), path: "/queue" });
  if (host && host.sandboxes >= host.max_sandboxes * NEAR)
    found.push({
      key: "full",
      words: `${host.sandboxes} of ${host.max_sandboxes} sandboxes live.`,
      path: "/queue",
    });
  if (host && host.memory_available_bytes < host.memory_total_bytes * (1 - NEAR))
    found.push({
      key: "memory",
      words: `${bytes(host.memory_available_bytes)} of memory are left.`,
      path: "/queue",
    });

  for (const sandbox of sandboxes) {
    const name = shortId(sandbox.id);
    const path = `/sandboxes/${segment(sandbox.id)}`;
    const weak = sandbox.isolation.layers.filter((layer) => layer.state === "degraded");
    const most = sandbox.limits.memory_bytes ?? null;
    if (sandbox.state === "paused")
      found.push({
        key: `${sandbox.id} paused`,
        words: `${name} is paused.`,
        path,
      });
    const used = sandbox.use?.memory_bytes ?? null;
    if (used !== null && most !== null && used >= most * NEAR)
      found.push({
        key: `${sandbox.id} memory`,
        words: `${name} uses ${bytes(used)} of ${bytes(most)} of memory.`,
        path,
      });
    if (weak.length > 0)
      found.push({
        key: `${sandbox.id} isolation`,
        words: `${name} has degraded layers: ${weak.map((layer) => visibleLine(layer.name, 40)).join(", ")}.`,
        path: `${path}?panel=isolation`,
      });
  }

  for (const [key, use] of keys)
    for (const [name, bound] of Object.entries(use ?? {}))
      if (bound.maximum !== null && bound.used >= bound.maximum * NEAR)
        found.push({
          key: `${key.id} ${name}`,
          words: `The key ${visibleLine(key.name || key.id, 40)} has used ${Math.floor(bound.used)} of ${bound.maximum} (${name.replaceAll("_", " ")}).`,
          path: "/keys",
        });
  return found;
}

function memoryOf(host: Capacity): string {
  return `${bytes(host.memory_total_bytes - host.memory_available_bytes)} of ${bytes(host.memory_total_bytes)}`;
}

function Figure({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

/** Executions of each hour, those that failed apart. */
export function hoursOf(items: Used[]): { label: string; group: string; value: number }[] {
  const hours = new Map<string, { executions: number; errors: number }>();
  for (const { start, executions, errors } of items) {
    const sum = hours.get(start) ?? { executions: 0, errors: 0 };
    hours.set(start, { executions: sum.executions + executions, errors: sum.errors + errors });
  }
  return [...hours.entries()]
    .sort(([one], [other]) => one.localeCompare(other))
    .flatMap(([start, { executions, errors }]) => {
      const label = `${start.slice(11, 13)}:00`;
      return [
        { label, group: "ok", value: executions - errors },
        { label, group: "failed", value: errors },
      ];
    });
}

function LastDay({ items, error, retry }: { items: Used[]; error: unknown; retry: () => void }) {
  const chart = useMemo(
    () => readChart({ type: "bar", title: "Executions by hour (UTC)", elements: hoursOf(items) }),
    [items],
  );
  return (
    <section className="card" aria-label="The last 24 hours">
      <div className="row">
        <h2>The last 24 hours</h2>
        <Link href="/usage">Usage by key</Link>
      </div>
      {!!error && <ProblemBox error={error} retry={retry} />}
      {!error && items.length === 0 && <p className="quiet">Nothing ran.</p>}
      {items.length > 0 && chart && <ChartView chart={chart} />}
    </section>
  );
}

function Recent({ sandboxes, error, retry }: { sandboxes: Sandbox[]; error: unknown; retry: () => void }) {
  const recent = sandboxes
    .filter((each) => each.use?.last_at)
    .toSorted((one, other) => (other.use?.last_at ?? "").localeCompare(one.use?.last_at ?? ""))
    .slice(0, MOST_RECENT);
  return (
    <section className="card" aria-label="Where code ran last">
      <h2>Where code ran last</h2>
      {!!error && <ProblemBox error={error} retry={retry} />}
      {!error && recent.length === 0 && <Empty title="No living sandbox has run code." />}
      {recent.length > 0 && (
        <table className="plain">
          <thead>
            <tr>
              {["Sandbox", "Key", "Cells", "Outcome", "At"].map((each) => (
                <th key={each} scope="col">
                  {each}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {recent.map((each) => (
              <tr key={each.id}>
                <td>
                  <Link href={`/sandboxes/${segment(each.id)}`}>
                    <code>{shortId(each.id)}</code>
                  </Link>
                </td>
                <td>{visibleLine(each.owner, 40)}</td>
                <td className="number">{each.use?.cells}</td>
                <td>{visibleLine(each.use?.last_outcome ?? "", 30)}</td>
                <td>{clock(each.use?.last_at)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}
