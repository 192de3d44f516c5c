/** The code of the address that was opened: used at once where nobody is logged in, else after a question.
 *
 * Another site can lead a browser to an address with a code of its own: what is then done here would be done for its key.
 */

import { send } from "../api/client";
import type { Me } from "../api/types";
import { nameOf } from "../parts/Shell";

type Asked = { me: Me; use: () => void; leave: () => void };

export function CodeQuestion({ me, use, leave }: Asked) {
  return (
    <main className="login">
      <div className="login-card">
        <h1>Log in with the code of this address?</h1>
        <p>
          This browser is logged in as <strong>{nameOf(me)}</strong>. The address that was opened holds the
          code of a login, perhaps of another key, which would take its place. Use it only if you asked for
          that address.
        </p>
        <div className="row end">
          <button type="button" onClick={use}>
            Use the code
          </button>
          <button type="button" className="primary" onClick={leave}>
            Stay logged in as {nameOf(me)}
          </button>
        </div>
      </div>
    </main>
  );
}

type Told = { me: Me; isRefused: boolean; close: () => void };

export function CodeNotice({ me, isRefused, close }: Told) {
  return (
    <div className="row code-notice">
      <p role="status">
        {isRefused
          ? "The code of that address was used already, or is older than ten minutes: this browser is still logged in as "
          : "By the address that was opened, this browser is now logged in as "}
        <strong>{nameOf(me)}</strong>.
      </p>
      <button type="button" className="subtle" onClick={close}>
        Close
      </button>
    </div>
  );
}

// Effects run twice while developing, and a code counts once.
let entering: Promise<void> | null = null;

export function enter(code: string): Promise<void> {
  entering ??= send("POST", "/v1/login", { code });
  return entering;
}
