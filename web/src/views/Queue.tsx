/** How busy the server is: places for stateless runs, who waits, and what the host has left. */

import { useQuery } from "@tanstack/react-query";
import { get } from "../api/client";
import type * as api from "../api/schema";
import { bytes, seconds, visibleLine } from "../parts/format";
import { ProblemBox } from "../parts/Problems";
import { BoundView } from "./Keys";

type QueueState = api.QueueAnswer;
type Capacity = api.Capacity;

export default function Queue() {
  const queue = useQuery({
    queryKey: ["queue"],
    queryFn: ({ signal }) => get<QueueState>("/v1/queue", signal),
    refetchInterval: 2000,
  });
  const host = useQuery({
    queryKey: ["capacity"],
    queryFn: ({ signal }) => get<Capacity>("/v1/capacity", signal),
    refetchInterval: 2000,
  });

  return (
    <div className="page scrolling" tabIndex={0}>
      <h1>Queue and room</h1>
      {queue.error && <ProblemBox error={queue.error} retry={() => queue.refetch()} />}
      {queue.data && <Waiting of={queue.data} />}
      {host.error && (
        <ProblemBox error={host.error} retry={() => host.refetch()} title="The host does not answer" />
      )}
      {host.data && <Room of={host.data} />}
    </div>
  );
}

function Waiting({ of }: { of: QueueState }) {
  return (
    <section className="card" aria-label="Stateless runs">
      <h2>Stateless runs</h2>
      <dl className="bounds">
        <BoundView name="Running" of={{ used: of.running, maximum: of.places }} />
        <BoundView name="Waiting" of={{ used: of.waiting, maximum: of.capacity }} />
        <Figure
          name="Longest wait now"
          value={of.oldest_wait_seconds === null ? "nobody waits" : seconds(of.oldest_wait_seconds)}
        />
        <Figure name="A run takes" value={of.mean_seconds === null ? "–" : seconds(of.mean_seconds)} />
        <Figure name="Refused since the start" value={of.refused.toLocaleString()} />
        <Figure name="Waited in vain" value={of.timed_out.toLocaleString()} />
      </dl>
      {of.keys.length > 0 && (
        <table className="plain">
          <thead>
            <tr>
              <th scope="col">Key</th>
              <th scope="col">Waiting</th>
            </tr>
          </thead>
          <tbody>
            {of.keys.map((key) => (
              <tr key={key.key_id}>
                <td>{visibleLine(key.key_id, 40)}</td>
                <td className="number">{key.waiting}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

function Room({ of }: { of: Capacity }) {
  const used = of.memory_total_bytes - of.memory_available_bytes;
  return (
    <section className="card" aria-label="Host">
      <h2>Host</h2>
      {of.is_draining && <p className="banner">It is draining: it takes no new sandboxes.</p>}
      {of.cold_reason && <p className="banner">{visibleLine(of.cold_reason, 300)}</p>}
      <dl className="bounds">
        <BoundView name="Sandboxes" of={{ used: of.sandboxes, maximum: of.max_sandboxes }} />
        <div>
          <dt>Memory</dt>
          <dd>
            {bytes(used)} of {bytes(of.memory_total_bytes)}
            <meter
              min={0}
              max={1}
              high={0.9}
              value={used / of.memory_total_bytes}
              aria-label={`Memory: ${bytes(used)} of ${bytes(of.memory_total_bytes)}`}
            />
          </dd>
        </div>
        <Figure name="Load" value={`${of.load.toFixed(1)} on ${of.cpu_cores} processors`} />
        <Figure name="Ready in the pool" value={String(of.pool_ready)} />
        <Figure name="Isolation" value={of.isolation_level} />
        <Figure name="Version" value={of.version} />
      </dl>
    </section>
  );
}

function Figure({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}
