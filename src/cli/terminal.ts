import { createInterface } from 'node:readline'

/** Questions on the terminal of this process; undefined without one. */
export function terminal(output: NodeJS.WriteStream = process.stdout) {
  if (!process.stdin.isTTY || !output.isTTY) return undefined
  const lines = createInterface({ input: process.stdin, output })
  let ended: (() => void) | undefined
  lines.once('close', () => ended?.())
  return {
    /** The line that is typed; undefined after Ctrl-C or Ctrl-D. */
    ask: (question: string) =>
      new Promise<string | undefined>((resolve) => {
        ended = () => resolve(undefined)
        lines.question(question, resolve)
      }),
    close: () => lines.close(),
  }
}

/**
 * Asks on stderr, for a command whose stdout is its result; undefined without a terminal. It reads
 * the terminal only during the question, so that Ctrl-C ends the command at other times.
 */
export function question() {
  if (!process.stdin.isTTY || !process.stderr.isTTY) return undefined
  return async (text: string) => {
    const asking = terminal(process.stderr)
    try {
      return await asking?.ask(text)
    } finally {
      asking?.close()
    }
  }
}
