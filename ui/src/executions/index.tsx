/** The list of executions. */
import { EmptyState } from "../frame/pieces";

export function Executions() {
  return <EmptyState title="Executions" />;
}
