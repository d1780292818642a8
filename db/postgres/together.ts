/** More items in one statement make the others wait for too long. */
const itemsMax = 64

/**
 * Lets reads that come while one is under way share the next statement, because a round trip costs
 * more than a row. `read` answers in the order of its items. A read never begins before its call, so
 * that it sees what was committed by then. Everyone who shares a statement shares its error.
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
