/** The question before an act that loses something: what is lost stands in it. */

import { AlertDialog } from "radix-ui";
import { type ReactNode, useState } from "react";
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
          {problem !== null && <ProblemBox error={problem} />}
          <div className="row end">
            <AlertDialog.Cancel>Cancel</AlertDialog.Cancel>
            <button type="button" className="danger" disabled={isBusy} onClick={confirm}>
              {act}
            </button>
          </div>
        </AlertDialog.Content>
      </AlertDialog.Portal>
    </AlertDialog.Root>
  );
}
