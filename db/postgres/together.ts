/** A statement with more items makes the next items wait too long. */
const itemsMax = 64

/**
 * Reads that come while one is running share the next statement, because a round trip costs more than
 * a row. `read` answers in the order of its items. A statement begins after the calls that it serves,
 * so they see what was committed before them. Calls that share a statement share its error.
 */
export function readTogether<Item, Answer>(
  read: (items: readonly Item[]) => Promise<readonly Answer[]>,
): (item: Item) => Promise<Answer> {
  type Entry = { item: Item; resolve: (answer: Answer) => void; reject: (error: unknown) => void }
  let waiting: Entry[] = []
  let isRunning = false
  const run = async () => {
    const entries = waiting.slice(0, itemsMax)
    waiting = waiting.slice(itemsMax)
    try {
      const answers = await read(entries.map(({ item }) => item))
      for (const [index, { resolve }] of entries.entries()) resolve(answers[index] as Answer)
    } catch (error) {
      for (const { reject } of entries) reject(error)
    }
  }
  const drain = async () => {
    while (waiting.length > 0) await run()
    isRunning = false
  }
  return (item) =>
    new Promise((resolve, reject) => {
      waiting.push({ item, resolve, reject })
      if (isRunning) return
      isRunning = true
      // Calls of the same turn share the first statement, too.
      queueMicrotask(drain)
    })
}
