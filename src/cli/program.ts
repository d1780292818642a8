/**
 * The command that starts this program: the executable, or the runtime with the sources. Arguments
 * follow it.
 */
export function ownProgram(): readonly string[] {
  const isCompiled = Bun.main.startsWith('/$bunfs/')
  return isCompiled ? [process.execPath] : [process.execPath, Bun.main]
}
