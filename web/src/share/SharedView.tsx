/** What a share shows: the cells, and the other chosen parts beside them. There is nothing to do here but look. */

import { useQuery } from "@tanstack/react-query";
import { Tabs } from "radix-ui";
import { type ReactNode, useEffect, useState } from "react";
import { get } from "../api/client";
import { PART_NAMES, type SharedPart, type SharedSandbox } from "../api/shares";
import { useFollow, useWatchState } from "../api/watch";
import { FilesPanel } from "../panels/Files";
import { VariablesPanel } from "../panels/Variables";
import { duration, visibleLine } from "../parts/format";
import { useNow } from "../parts/hooks";
import { LiveLost } from "../parts/LiveLost";
import { State } from "../parts/State";
import { Transcript } from "../views/Transcript";
import { useCells } from "../views/useCells";
import { SharedAudit, SharedNetwork } from "./SharedLogs";

const REFRESH_MILLISECONDS = 5000;
// What stands in the place of the sandbox's id, which a reader does not know.
const ANY = "shared";

export default function SharedView({ shareId, opened }: { shareId: string; opened: SharedSandbox }) {
  const watched = useWatchState();
  const about = useQuery({
    queryKey: ["sandbox", ANY],
    queryFn: ({ signal }) => get<SharedSandbox>(`/v1/shares/${shareId}`, signal),
    initialData: opened,
    refetchInterval: REFRESH_MILLISECONDS,
  });
  const share = about.data;
  const hasCells = share.shows.includes("record");
  const others = share.shows.filter((part) => part !== "record");

  // A share that was revoked closes the socket first: the next question says why.
  const { refetch } = about;
  useEffect(() => {
    if (watched === "lost") refetch();
  }, [watched, refetch]);

  return (
    <div className="page sandbox-page">
      <SharedHead share={share} />
      <LiveLost />
      {share.state === "ended" && (
        <div className="banner bad-banner" role="status">
          <strong>This sandbox has ended</strong>
          {share.reason && ` (${visibleLine(share.reason, 40)})`}. What was read before stays on this page.
        </div>
      )}
      {share.state === "paused" && (
        <div className="banner" role="status">
          <strong>Paused.</strong> Nothing runs in it now.
        </div>
      )}
      <div className={hasCells && others.length > 0 ? "split" : "split one"}>
        {hasCells ? <SharedCells share={share} /> : <OnlyFollowed />}
        {others.length > 0 && <SharedParts share={share} parts={others} />}
      </div>
    </div>
  );
}

function SharedHead({ share }: { share: SharedSandbox }) {
  const now = useNow();
  const left = (Date.parse(share.ends_at) - now) / 1000;
  return (
    <section className="sandbox-head" aria-label="Share">
      <div className="head">
        <h1>A shared sandbox</h1>
        <State state={share.state} />
        <span className="chip">read-only</span>
        <span className="quiet">
          {share.until_at === null ? "live" : `as it was on ${new Date(share.until_at).toLocaleString()}`}
          {share.from_at !== null && `, from ${new Date(share.from_at).toLocaleString()} on`}
          {` · this share ends in ${duration(left)}`}
        </span>
        {share.readers > 1 && <span className="quiet">{share.readers} look on</span>}
      </div>
    </section>
  );
}

function SharedCells({ share }: { share: SharedSandbox }) {
  const [chosen, setChosen] = useState<string | null>(null);
  const cells = useCells(ANY, share.context_id, share.state !== "ended");
  return (
    <div className="main-column">
      <Transcript sandboxId={ANY} cells={cells} chosen={chosen} choose={setChosen} runs={0} reuse={null} />
    </div>
  );
}

/** Without cells something has to follow all the same, to be told of the end. */
function OnlyFollowed() {
  useFollow("sandbox", ANY, () => {});
  return null;
}

function SharedParts({ share, parts }: { share: SharedSandbox; parts: SharedPart[] }) {
  const views: Record<Exclude<SharedPart, "record">, () => ReactNode> = {
    variables: () => (
      <VariablesPanel
        sandboxId={ANY}
        contextId={share.context_id}
        numberOf={() => null}
        choose={() => undefined}
      />
    ),
    files: () => <FilesPanel sandboxId={ANY} />,
    audit: () => <SharedAudit />,
    network: () => <SharedNetwork />,
  };
  return (
    <Tabs.Root className="inspector" defaultValue={parts[0] ?? ""}>
      <Tabs.List className="tabs" aria-label="What is shown">
        {parts.map((part) => (
          <Tabs.Trigger key={part} value={part}>
            {PART_NAMES[part]}
          </Tabs.Trigger>
        ))}
      </Tabs.List>
      {parts.map(
        (part) =>
          part !== "record" && (
            <Tabs.Content key={part} value={part} className="panel">
              {views[part]()}
            </Tabs.Content>
          ),
      )}
    </Tabs.Root>
  );
}
