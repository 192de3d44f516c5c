/** The shares that have not ended: what each shows, who looks on, and its end. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "wouter";
import { get, segment, send } from "../api/client";
import { PART_NAMES, type Share } from "../api/shares";
import type { Page } from "../api/types";
import { Confirm } from "../parts/Confirm";
import { duration, shortId, visibleLine } from "../parts/format";
import { useNow } from "../parts/hooks";
import { Empty, ProblemBox } from "../parts/Problems";

export default function Shares() {
  const queries = useQueryClient();
  const now = useNow();
  const list = useQuery({
    queryKey: ["shares"],
    queryFn: ({ signal }) => get<Page<Share>>("/v1/shares", signal),
    refetchInterval: 5000,
  });
  const shares = list.data?.items ?? [];

  return (
    <div className="page scrolling">
      <h1>Shares</h1>
      {list.error && <ProblemBox error={list.error} retry={() => list.refetch()} />}
      {list.data && shares.length === 0 && (
        <Empty title="Nothing is shared.">
          <p>
            <em>Share</em> on the page of a sandbox makes an address at which others look on, read-only and
            without an account.
          </p>
        </Empty>
      )}
      <ul className="cards">
        {shares.map((share) => (
          <li key={share.id} className="card">
            <div className="row">
              <h2>
                <Link href={`/sandboxes/${segment(share.sandbox_id)}`}>
                  <code>{shortId(share.sandbox_id)}</code>
                </Link>
              </h2>
              {share.shows.map((part) => (
                <span key={part} className="chip">
                  {PART_NAMES[part]}
                </span>
              ))}
              <span className="quiet">{share.until_at === null ? "live" : "up to a time"}</span>
              <span className="acts">
                <Confirm
                  trigger={<button type="button">Revoke</button>}
                  title="Revoke this share?"
                  act="Revoke"
                  run={() => send("DELETE", `/v1/shares/${segment(share.id)}`)}
                  done={() => queries.invalidateQueries({ queryKey: ["shares"] })}
                >
                  {share.readers > 0 ? `${share.readers} look on now. ` : ""}Its address shows nothing from
                  then on.
                </Confirm>
              </span>
            </div>
            <p className="quiet">
              context {visibleLine(share.context_id, 60)} · opened {share.openings}{" "}
              {share.openings === 1 ? "time" : "times"}, {share.readers} look on now · ends in{" "}
              {duration((Date.parse(share.ends_at) - now) / 1000)} · by {shortId(share.key_id)}
            </p>
          </li>
        ))}
      </ul>
    </div>
  );
}
