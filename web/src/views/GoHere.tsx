/** Going to a checkpoint: in place, after one of now was made, or as a fork beside. */

import { useQueryClient } from "@tanstack/react-query";
import { Dialog } from "radix-ui";
import { type ReactNode, useState } from "react";
import { Link, useLocation } from "wouter";
import { segment, send } from "../api/client";
import { asProblem } from "../api/problem";
import type { Checkpoint, Page, Sandbox } from "../api/types";
import { useActNames } from "../parts/actName";
import { bytes, clock, visibleLine } from "../parts/format";
import { ProblemBox } from "../parts/Problems";

type Given = { sandboxId: string; contextId: string; checkpoint: Checkpoint; trigger: ReactNode };

export function GoHere({ sandboxId, contextId, checkpoint, trigger }: Given) {
  const queries = useQueryClient();
  const [, go] = useLocation();
  const [isOpen, setOpen] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<unknown>(null);
  const isUnknown = problem !== null && asProblem(problem).isOutcomeUnknown;
  const names = useActNames();
  const path = `/v1/sandboxes/${segment(sandboxId)}`;
  const name = visibleLine(checkpoint.name || checkpoint.id, 60);

  const act = async (work: () => Promise<void>) => {
    setBusy(true);
    setProblem(null);
    try {
      await work();
      names.ended(null);
      setOpen(false);
    } catch (error) {
      names.ended(error);
      setProblem(error);
    } finally {
      setBusy(false);
      queries.invalidateQueries();
    }
  };
  // The timeline and the list say whether it happened.
  const look = () => {
    setOpen(false);
    setProblem(null);
    queries.invalidateQueries();
  };
  const inPlace = () =>
    act(async () => {
      await send("POST", `${path}/checkpoints`, {
        context_id: contextId,
        name: `before going to ${name}`.slice(0, 60),
      });
      await send("POST", `${path}/checkpoints/${segment(checkpoint.id)}/rollback`);
    });
  const asFork = () =>
    act(async () => {
      const wanted = { count: 1, checkpoint_id: checkpoint.id };
      const made = await send<Page<Sandbox>>("POST", `${path}/forks`, wanted, { once: names.of("fork") });
      const first = made.items[0];
      if (first) go(`/sandboxes/${first.id}`);
    });

  return (
    <Dialog.Root open={isOpen} onOpenChange={setOpen}>
      <Dialog.Trigger asChild>{trigger}</Dialog.Trigger>
      <Dialog.Portal>
        <Dialog.Overlay className="overlay" />
        <Dialog.Content className="dialog">
          <Dialog.Title>Go to {name}</Dialog.Title>
          <Dialog.Description>
            Made at {clock(checkpoint.created_at)}: the live variables, and {checkpoint.files} files (
            {bytes(checkpoint.files_bytes)}).
          </Dialog.Description>
          {checkpoint.left_behind.length > 0 && (
            <div className="hint">
              These cannot come along:
              <ul>
                {checkpoint.left_behind.map((each) => (
                  <li key={String(each)}>{visibleLine(String(each))}</li>
                ))}
              </ul>
            </div>
          )}
          <div className="choices">
            <button type="button" className="primary" disabled={isBusy || isUnknown} onClick={inPlace}>
              Here, in place
            </button>
            <p className="quiet">
              A checkpoint of now is made first, so that this can be undone. Cells after it are marked as
              undone.
            </p>
            <button type="button" disabled={isBusy || isUnknown} onClick={asFork}>
              As a fork
            </button>
            <p className="quiet">A second sandbox begins at this checkpoint; this one goes on as it is.</p>
          </div>
          {problem !== null && <ProblemBox error={problem} look={look} />}
          <div className="row end">
            <Link href={`/sandboxes/${segment(sandboxId)}/compare?a=${segment(checkpoint.id)}`}>
              Compare it with now
            </Link>
            <Dialog.Close>Cancel</Dialog.Close>
          </div>
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
