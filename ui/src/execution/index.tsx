/** One execution. */
import { EmptyState } from "../frame/pieces";

export function Execution({ params }: { params: Record<string, string> }) {
  return <EmptyState title={`Execution ${params.id}`} />;
}
