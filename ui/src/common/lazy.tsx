/** Components that are loaded when they are first shown. */
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Problem } from "./api";
import { ErrorState, Loading } from "./components";

const RETRY = 2000; // ms between attempts while the server is unreachable

/** A component whose module is loaded on first use; a failed load is repeated. */
export function lazy<P extends object>(load: () => Promise<ComponentType<P>>): ComponentType<P> {
  let loaded: ComponentType<P> | null = null;
  return function Lazy(props: P) {
    const [Shown, setShown] = useState<ComponentType<P> | null>(() => loaded);
    const [failed, setFailed] = useState(false);
    useEffect(() => {
      if (Shown) return;
      let left = false;
      let timer = 0;
      const attempt = () =>
        load().then(
          (found) => {
            loaded = found;
            if (!left) setShown(() => found);
          },
          () => {
            if (left) return;
            setFailed(true);
            timer = window.setTimeout(attempt, RETRY);
          },
        );
      void attempt();
      return () => {
        left = true;
        clearTimeout(timer);
      };
    }, []);
    if (Shown) return <Shown {...props} />;
    if (failed) return <ErrorState problem={new Problem(0, "This part of the page could not be loaded", "The connection failed, or the server was updated. Reload the page.")} retry={() => window.location.reload()} />;
    return <Loading />;
  };
}
