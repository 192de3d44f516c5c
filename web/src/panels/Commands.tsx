/** The commands that ran in a sandbox that has ended: what was typed, how each ended, and what it wrote. All of it is text. */

import { useInfiniteQuery } from "@tanstack/react-query";
import { get, segment } from "../api/client";
import type { CommandPage, CommandPiece, RanCommand } from "../api/schema";
import { bytes, clock, visible, visibleLine } from "../parts/format";
import { Empty, ProblemBox } from "../parts/Problems";

const PAGE = 50;
const SHOWN_CHARACTERS = 60;

export function EndedCommands({ sandboxId }: { sandboxId: string }) {
  const list = useInfiniteQuery({
    queryKey: ["record-commands", sandboxId],
    queryFn: ({ pageParam, signal }) => {
      const after = pageParam === null ? "" : `&after=${pageParam}`;
      const path = `/v1/records/${segment(sandboxId)}/commands/history?limit=${PAGE}${after}`;
      return get<CommandPage>(path, signal);
    },
    initialPageParam: null as number | null,
    getNextPageParam: (page) => page.next_cursor,
    retry: false,
  });
  const pages = list.data?.pages ?? [];
  const items = pages.flatMap((page) => page.items);
  const dropped = pages[0]?.dropped_commands ?? 0;

  return (
    <div className="panel-body">
      {list.error && <ProblemBox error={list.error} retry={() => list.refetch()} />}
      {dropped > 0 && <p className="note">The record is bounded: {dropped} older commands are missing.</p>}
      {list.data && items.length === 0 && (
        <Empty title="No command ran in it.">
          <p>Commands and terminals that are started through the API are kept here.</p>
        </Empty>
      )}
      {items.map((each) => (
        <Command key={each.number} of={each} />
      ))}
      {list.hasNextPage && (
        <button type="button" disabled={list.isFetchingNextPage} onClick={() => list.fetchNextPage()}>
          Show more
        </button>
      )}
    </div>
  );
}

function Command({ of }: { of: RanCommand }) {
  return (
    <details>
      <summary>
        <code>{visibleLine(of.command, SHOWN_CHARACTERS)}</code>{" "}
        <span className="quiet">
          {ending(of)} · {clock(of.started_at)}
        </span>
      </summary>
      <pre className="plain-text">{visible(of.command)}</pre>
      <p className="quiet">in {visibleLine(of.cwd, 120)}</p>
      {of.is_terminal && <p className="quiet">It was a terminal: what it showed is not kept.</p>}
      {of.output.length > 0 && <pre className="plain-text">{written(of.output)}</pre>}
    </details>
  );
}

function ending({ timed_out, exit_code }: RanCommand): string {
  if (timed_out) return "its time was over";
  return exit_code === null ? "ran when the sandbox ended" : `exit code ${exit_code}`;
}

/** The pieces of both streams in order, with how much was left out between those of each. */
export function written(pieces: CommandPiece[]): string {
  const ends = { stdout: 0, stderr: 0 };
  return pieces
    .map(({ stream, text, begin_bytes, size_bytes }) => {
      const missing = begin_bytes - ends[stream];
      ends[stream] = begin_bytes + size_bytes;
      return (missing > 0 ? `\n[${bytes(missing)} left out]\n` : "") + visible(text);
    })
    .join("");
}
