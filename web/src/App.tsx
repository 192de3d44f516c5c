/** The frame around the views: who is logged in, where one can go, and the login where it is needed. */

import { QueryClientProvider, useQuery, useQueryClient } from "@tanstack/react-query";
import { lazy, type ReactNode, Suspense, useEffect, useState } from "react";
import { Route, Router, Switch, useLocation } from "wouter";
import { get, whenLoginIsNeeded } from "./api/client";
import { asProblem } from "./api/problem";
import { client, sandboxAt } from "./api/queries";
import type { Me } from "./api/types";
import { Boundary } from "./parts/Boundary";
import { loadable } from "./parts/loadable";
import { Empty, ProblemBox } from "./parts/Problems";
import { MayActContext } from "./parts/rights";
import { Shell } from "./parts/Shell";
import { CodeNotice, CodeQuestion, enter } from "./views/CodeOfAddress";
import { Login } from "./views/Login";
import { Sandboxes } from "./views/Sandboxes";

const Branches = lazy(() => import("./views/Branches"));
const Compare = lazy(() => import("./views/Compare"));
const Overview = lazy(() => import("./views/Overview"));
const [Sandbox, loadSandbox] = loadable(() => import("./views/Sandbox"));
const Keys = lazy(() => import("./views/Keys"));
const Records = lazy(() => import("./views/Records"));
const RecordView = lazy(() => import("./views/RecordView"));
const Usage = lazy(() => import("./views/Usage"));
const Queue = lazy(() => import("./views/Queue"));
const Server = lazy(() => import("./views/Server"));
const Shares = lazy(() => import("./views/Shares"));

/** Loads the code of the view at an address, beside who is logged in. */
export function loadEarly(pathname: string): void {
  if (sandboxAt(pathname) !== null) loadSandbox().catch(() => undefined);
}

export function App({ code }: { code: string | null }) {
  return (
    <QueryClientProvider client={client}>
      <Router base="/console">
        <Gate code={code} />
      </Router>
    </QueryClientProvider>
  );
}

type Standing = "unknown" | "in" | "out";
/** Of the code in the address: there is none, it waits, it is being used, it was used, it was refused. */
type CodeState = "none" | "waits" | "in use" | "used" | "refused";

function Gate({ code }: { code: string | null }) {
  const queries = useQueryClient();
  const [isWanted, setWanted] = useState(false);
  const [codeProblem, setCodeProblem] = useState<unknown>(null);
  const [codeState, setCodeState] = useState<CodeState>(code === null ? "none" : "waits");
  const me = useQuery({
    queryKey: ["me"],
    queryFn: ({ signal }) => get<Me>("/v1/me", signal),
  });
  const standing = standingOf(me);

  const takeCode = async () => {
    if (code === null) return;
    let outcome: CodeState = "used";
    setCodeState("in use");
    try {
      await enter(code);
      setWanted(false);
    } catch (error) {
      setCodeProblem(error);
      outcome = "refused";
    }
    await me.refetch();
    setCodeState(outcome);
  };
  const isFirst = codeState === "waits" && standing === "out";

  useEffect(() => whenLoginIsNeeded(() => setWanted(true)), []);
  // biome-ignore lint/correctness/useExhaustiveDependencies: once, when it is known that nobody is logged in
  useEffect(() => {
    if (isFirst) takeCode();
  }, [isFirst]);

  const entered = () => {
    setWanted(false);
    setCodeProblem(null);
    setCodeState("none");
    queries.invalidateQueries();
  };

  if (isFirst || codeState === "in use") return null;
  if (standing === "unknown") {
    if (me.error && asProblem(me.error).status !== 401) {
      return (
        <main className="alone">
          <ProblemBox error={me.error} retry={() => me.refetch()} />
        </main>
      );
    }
    return null;
  }
  if (standing === "out" || !me.data) return <Login entered={entered} codeProblem={codeProblem} />;
  if (codeState === "waits")
    return <CodeQuestion me={me.data} use={takeCode} leave={() => setCodeState("none")} />;

  return (
    <MayActContext.Provider value={me.data.is_owner || me.data.scopes.includes("sandboxes")}>
      <Shell me={me.data}>
        {(codeState === "used" || codeState === "refused") && (
          <CodeNotice me={me.data} isRefused={codeState === "refused"} close={() => setCodeState("none")} />
        )}
        <View>
          <Switch>
            <Route path="/">{() => <Sandboxes />}</Route>
            <Route path="/sandboxes">{() => <Sandboxes />}</Route>
            <Route path="/sandboxes/:id">{({ id }) => <Sandbox key={id} id={id} />}</Route>
            <Route path="/sandboxes/:id/compare">{({ id }) => <Compare key={id} id={id} />}</Route>
            <Route path="/sandboxes/:id/branches">{({ id }) => <Branches key={id} id={id} />}</Route>
            <Route path="/overview">{() => <Overview me={me.data} />}</Route>
            <Route path="/keys">{() => <Keys />}</Route>
            <Route path="/usage">{() => <Usage />}</Route>
            <Route path="/queue">{() => <Queue />}</Route>
            <Route path="/server">{() => <Server />}</Route>
            <Route path="/records">{() => <Records />}</Route>
            <Route path="/records/:id">{({ id }) => <RecordView key={id} id={id} />}</Route>
            <Route path="/shares">{() => <Shares />}</Route>
            <Route>{() => <Empty title="There is no such page." />}</Route>
          </Switch>
        </View>
      </Shell>
      {isWanted && <Login entered={entered} isOver codeProblem={null} />}
    </MayActContext.Provider>
  );
}

/** A view that fails leaves the bar, and with it the way to the others. */
function View({ children }: { children: ReactNode }) {
  const [path] = useLocation();
  return (
    <Boundary
      of={path}
      instead={<Empty title="This view has failed. Load the page anew, or go to another." />}
    >
      <Suspense fallback={<div className="skeleton" />}>{children}</Suspense>
    </Boundary>
  );
}

function standingOf(me: { data: Me | undefined; error: unknown }): Standing {
  if (me.data) return "in";
  return me.error && asProblem(me.error).status === 401 ? "out" : "unknown";
}
