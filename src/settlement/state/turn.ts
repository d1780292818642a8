/**
 * Runs work of one relayer sequentially. The account nonce that a turn chooses is on the disk, or
 * free again, when the next turn starts. Work must not ask for another turn of the same relayer.
 * The result settles as the work does.
 */
export type Turn = <T>(work: () => Promise<T>) => Promise<T>

export function createTurn(): Turn {
  let last: Promise<unknown> | undefined
  return <T>(work: () => Promise<T>): Promise<T> => {
    const result = last === undefined ? begin(work) : last.then(work)
    const over = result.then(
      () => undefined,
      () => undefined,
    )
    last = over
    void over.then(() => {
      if (last === over) last = undefined
    })
    return result
  }
}

/** Calls the work at once, so that an uncontended turn adds no delay. */
async function begin<T>(work: () => Promise<T>): Promise<T> {
  return work()
}
