/** A question that the page asks by itself before an act: all that is acted on stands in it.
 *
 * `closed` takes the focus back to where the act was begun.
 */

import { AlertDialog } from "radix-ui";
import type { ReactNode } from "react";

type Given = {
  title: string;
  act: string;
  run: () => void;
  close: () => void;
  closed: () => void;
  children: ReactNode;
};

export function Question({ title, act, run, close, closed, children }: Given) {
  return (
    <AlertDialog.Root open onOpenChange={(isOpen) => !isOpen && close()}>
      <AlertDialog.Portal>
        <AlertDialog.Overlay className="overlay" />
        <AlertDialog.Content
          className="dialog"
          onCloseAutoFocus={(event) => {
            event.preventDefault();
            closed();
          }}
        >
          <AlertDialog.Title>{title}</AlertDialog.Title>
          <AlertDialog.Description asChild>
            <div>{children}</div>
          </AlertDialog.Description>
          <div className="row end">
            <AlertDialog.Cancel>Cancel</AlertDialog.Cancel>
            <AlertDialog.Action className="primary" onClick={run}>
              {act}
            </AlertDialog.Action>
          </div>
        </AlertDialog.Content>
      </AlertDialog.Portal>
    </AlertDialog.Root>
  );
}
