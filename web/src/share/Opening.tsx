/** The opening of a share: its secret becomes a token, which lives in this tab; and its end, however it comes. */

import { lazy, Suspense, useEffect, useRef, useState } from "react";
import { send, whenLoginIsNeeded } from "../api/client";
import { asProblem } from "../api/problem";
import { readAs } from "../api/reader";
import type { Opened, SharedSandbox } from "../api/shares";
import { Empty, ProblemBox } from "../parts/Problems";

const SharedView = lazy(() => import("./SharedView"));

type Standing = { kind: "opening" } | { kind: "open"; share: SharedSandbox } | { kind: "over" };

export function Opening({ shareId, secret }: { shareId: string; secret: string }) {
  const [standing, setStanding] = useState<Standing>({ kind: "opening" });
  const [problem, setProblem] = useState<unknown>(null);
  const isBegun = useRef(false);

  const open = async () => {
    setProblem(null);
    try {
      const opened = await send<Opened>(
        "POST",
        `/v1/shares/${encodeURIComponent(shareId)}/open`,
        { secret },
        { isRepeatable: true },
      );
      readAs({ shareId, token: opened.token });
      setStanding({ kind: "open", share: opened.share });
    } catch (error) {
      if (asProblem(error).status === 401) setStanding({ kind: "over" });
      else setProblem(error);
    }
  };

  // biome-ignore lint/correctness/useExhaustiveDependencies: once; each opening is counted
  useEffect(() => {
    whenLoginIsNeeded(() => setStanding({ kind: "over" }));
    if (isBegun.current) return;
    isBegun.current = true;
    if (secret) open();
    else setStanding({ kind: "over" });
  }, []);

  return (
    <>
      <a className="skip" href="#main">
        To the content
      </a>
      <main id="main" tabIndex={-1}>
        {problem !== null && (
          <div className="page">
            <ProblemBox error={problem} retry={open} title="The share could not be opened" />
          </div>
        )}
        {standing.kind === "opening" && problem === null && <div className="skeleton" />}
        {standing.kind === "open" && (
          <Suspense fallback={<div className="skeleton" />}>
            <SharedView shareId={shareId} opened={standing.share} />
          </Suspense>
        )}
        {standing.kind === "over" && (
          <div className="page">
            <h1 className="unseen">A shared sandbox</h1>
            <Empty title={secret ? "This share has ended." : "There is no share at this address."}>
              <p>
                {secret
                  ? "Its time was over, or those who made it have ended it. Nothing of it is shown any longer."
                  : "Open the whole address that you were given, with what stands behind the #."}
              </p>
            </Empty>
          </div>
        )}
      </main>
    </>
  );
}
