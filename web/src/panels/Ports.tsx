/** The ports on which programs of a sandbox listen, and an address for each that a browser can open. */

import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { get, segment, send } from "../api/client";
import { whileItMayAnswer } from "../api/queries";
import type * as api from "../api/schema";
import { clock, since, visibleLine } from "../parts/format";
import { copy, useNow } from "../parts/hooks";
import { Empty, ProblemBox } from "../parts/Problems";

export type Port = api.ListeningPort;
type PortList = api.PortList;
type Address = { url: string; host: string | null; until: number };
const LIFETIME_SECONDS = 3600;

export function PortsPanel({ sandboxId, canAct }: { sandboxId: string; canAct: boolean }) {
  const now = useNow(1000);
  const list = useQuery({
    queryKey: ["ports", sandboxId],
    queryFn: ({ signal }) => get<PortList>(`/v1/sandboxes/${segment(sandboxId)}/ports`, signal),
    refetchInterval: whileItMayAnswer(2000),
    retry: false,
  });
  const items = list.data?.items ?? [];

  return (
    <div className="panel-body">
      {list.isPending && <div className="skeleton" />}
      {list.error && <ProblemBox error={list.error} retry={() => list.refetch()} />}
      {list.data?.state === "none" && (
        <Empty title="Nothing in it can listen.">
          <p>It has no network of its own on this machine, so no program of it can open a port.</p>
        </Empty>
      )}
      {list.data?.state === "current" && items.length === 0 && (
        <Empty title="No program listens on a port.">
          <p>
            Each one appears here while it listens. To try: <code>python3 -m http.server 8000</code> in a
            terminal.
          </p>
        </Empty>
      )}
      <ul className="cards" aria-label="Open ports">
        {items.map((each) => (
          <PortCard key={each.port} sandboxId={sandboxId} of={each} canAct={canAct} now={now} />
        ))}
      </ul>
    </div>
  );
}

type Given = { sandboxId: string; of: Port; canAct: boolean; now: number };

function PortCard({ sandboxId, of, canAct, now }: Given) {
  const [address, setAddress] = useState<Address | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const isOver = address !== null && address.until <= now;

  useEffect(() => {
    if (isOver) setAddress(null);
  }, [isOver]);
  const sign = async () => {
    setProblem(null);
    const until = Date.now() + LIFETIME_SECONDS * 1000;
    try {
      const path = `/v1/sandboxes/${segment(sandboxId)}/ports/${of.port}/sign`;
      const made = await send<Omit<Address, "until">>("POST", path, { expires_in_seconds: LIFETIME_SECONDS });
      setAddress({ ...made, until });
    } catch (error) {
      setProblem(error);
    }
  };

  return (
    <li className="card">
      <div className="row">
        <h2>{of.port}</h2>
        <span>{programOf(of)}</span>
        {of.started_at && (
          <time className="quiet" dateTime={of.started_at} title={of.started_at}>
            since {clock(of.started_at)} ({since(of.started_at, now)})
          </time>
        )}
        <span className="acts">
          <button
            type="button"
            disabled={!canAct}
            onClick={sign}
            aria-label={`${address ? "New address" : "Address"} of port ${of.port}`}
          >
            {address ? "New address" : "Address"}
          </button>
        </span>
      </div>
      <p className="quiet">
        listens at{" "}
        {of.addresses.map((each) => (
          <code key={each} className="rule">
            {visibleLine(each, 50)}
          </code>
        ))}
      </p>
      {problem !== null && <ProblemBox error={problem} />}
      {address && !isOver && (
        <div className="row">
          {/* Its page gets no hold of this one, and does not learn where it was opened. */}
          <a ref={focused} href={address.url} target="_blank" rel="noopener noreferrer">
            {`Open port ${of.port} ↗`}
          </a>
          <button type="button" className="subtle" onClick={() => copy(address.url)}>
            Copy the address
          </button>
          <span className="quiet">
            {/\/p\/[^/]+\//.test(address.url)
              ? `whoever has it can open it, for ${since(new Date(now).toISOString(), address.until)}`
              : "open to everybody who knows it, as this server was set up"}
          </span>
        </div>
      )}
    </li>
  );
}

/** The link stands where there was none: Enter once more follows it. */
function focused(link: HTMLAnchorElement | null): void {
  link?.focus();
}

export function programOf(port: Port): string {
  if (port.is_answered_outside) return "answered by a program outside";
  if (!port.program) return "a program that is not known";
  return port.pid === null
    ? visibleLine(port.program, 40)
    : `${visibleLine(port.program, 40)}, process ${port.pid}`;
}
