import { createInterface } from 'node:readline'

/** Questions on the terminal of this process; undefined without one. */
export function terminal() {
  if (!process.stdin.isTTY || !process.stdout.isTTY) return undefined
  const lines = createInterface({ input: process.stdin, output: process.stdout })
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
