/** The question before an act that loses something: what is lost stands in it. */

import { useQueryClient } from "@tanstack/react-query";
import { AlertDialog } from "radix-ui";
import { type ReactNode, useState } from "react";
import { asProblem } from "../api/problem";
import { ProblemBox } from "./Problems";

type Given = {
  trigger: ReactNode;
  title: string;
  act: string;
  run: () => Promise<unknown>;
  done?: () => void;
  children: ReactNode;
};

export function Confirm({ trigger, title, act, run, done, children }: Given) {
  const [isOpen, setOpen] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<unknown>(null);
  const queries = useQueryClient();
  const isUnknown = problem !== null && asProblem(problem).isOutcomeUnknown;

  const confirm = async () => {
    setBusy(true);
    try {
      await run();
      setOpen(false);
      setProblem(null);
      done?.();
    } catch (error) {
      setProblem(error);
    } finally {
      setBusy(false);
    }
  };

  // The view behind says whether it happened.
  const look = () => {
    setOpen(false);
    setProblem(null);
    queries.invalidateQueries();
  };

  return (
    <AlertDialog.Root open={isOpen} onOpenChange={setOpen}>
      <AlertDialog.Trigger asChild>{trigger}</AlertDialog.Trigger>
      <AlertDialog.Portal>
        <AlertDialog.Overlay className="overlay" />
        <AlertDialog.Content className="dialog">
          <AlertDialog.Title>{title}</AlertDialog.Title>
          <AlertDialog.Description asChild>
            <div>{children}</div>
          </AlertDialog.Description>
          {problem !== null && <ProblemBox error={problem} again={confirm} look={look} />}
          <div className="row end">
            <AlertDialog.Cancel>Cancel</AlertDialog.Cancel>
            <button type="button" className="danger" disabled={isBusy || isUnknown} onClick={confirm}>
              {act}
            </button>
          </div>
        </AlertDialog.Content>
      </AlertDialog.Portal>
    </AlertDialog.Root>
  );
}
