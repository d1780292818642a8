/** Work that is repeated; `wake` makes its next turn come at once. */
export type Loop = {
  wake(): void
  /** Resolves when no turn runs. Call it when `isOver` is true. */
  stop(): Promise<void>
}

export type LoopOptions = {
  work: () => Promise<void>
  /** Pause between two turns, ms. */
  everyMs: number
  isOver: () => boolean
  /** A turn failed; the next one repeats it. */
  fault: (error: unknown) => void
}

export function createLoop({ work, everyMs, isOver, fault }: LoopOptions): Loop {
  let resume: (() => void) | undefined
  let isWoken = false
  const pause = () =>
    new Promise<void>((resolve) => {
      const end = () => {
        clearTimeout(timer)
        isWoken = false
        resume = undefined
        resolve()
      }
      const timer = setTimeout(end, isWoken ? 0 : everyMs)
      resume = end
    })
  const run = async () => {
    for (;;) {
      await pause()
      if (isOver()) return
      try {
        await work()
      } catch (error) {
        if (!isOver()) fault(error)
      }
    }
  }
  const running = run()
  const wake = () => {
    isWoken = true
    resume?.()
  }
  return {
    wake,
    async stop() {
      // It must not begin another pause when a turn runs now.
      wake()
      await running
    },
  }
}
