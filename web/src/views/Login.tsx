/** The login: by a token, where the code of the address did not do. Over a view, it leaves that view as it is. */

import { type FormEvent, useState } from "react";
import { send } from "../api/client";
import logo from "../logo.svg";
import { ProblemBox } from "../parts/Problems";

type Given = { entered: () => void; codeProblem: unknown; isOver?: boolean };

export function Login({ entered, codeProblem, isOver = false }: Given) {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      await send("POST", "/v1/login", { token: token.trim() }, { isRepeatable: true });
      setToken("");
      setProblem(null);
      entered();
    } catch (error) {
      setProblem(error);
    } finally {
      setBusy(false);
    }
  };

  return (
    <main className={isOver ? "login over" : "login"}>
      <form onSubmit={submit} aria-labelledby="login-title">
        <img src={logo} alt="" width="56" height="56" />
        <h1 id="login-title">{isOver ? "Your login has ended" : "fumehood"}</h1>
        <p>
          {isOver
            ? "Log in again; the page goes on where it was."
            : "Open the address that the server printed when it started, or enter a token."}
        </p>
        {codeProblem !== null && (
          <p className="hint">The code of that address was used already, or is older than ten minutes.</p>
        )}
        <label htmlFor="token">Token of the owner, or of a key</label>
        <input
          id="token"
          type="password"
          autoComplete="current-password"
          // biome-ignore lint/a11y/noAutofocus: the form is all that there is
          autoFocus
          required
          value={token}
          onChange={(event) => setToken(event.target.value)}
        />
        <button type="submit" className="primary" disabled={isBusy}>
          {isBusy ? "Logging in…" : "Log in"}
        </button>
        {problem !== null && <ProblemBox error={problem} title="The token was not taken" />}
      </form>
    </main>
  );
}
