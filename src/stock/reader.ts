import type { Address, Hex } from 'viem'
import { RpcFault } from '../chain/client'
import type * as Network from '../protocol/Network'

type Call = { to: Address; data: Hex }

/** Many eth_calls in one, in the state of one block; undefined for one that failed by itself. */
export type Read = (
  network: Network.Id,
  calls: readonly Call[],
  options?: { timeoutMs?: number },
) => Promise<{ blockNumber: bigint; results: readonly (Hex | undefined)[] }>

/** `readAt` (unix ms) is the time of the request: the state is not older. */
export type Answer = {
  results: readonly (Hex | undefined)[]
  blockNumber: bigint
  readAt: number
}

export type Reader = {
  /**
   * Answers from the newest block. Requests that wait at the same time share one call. Throws
   * RpcFault when the network gives no answer within the time.
   */
  ask(calls: readonly Call[]): Promise<Answer>
}

export type ReaderOptions = {
  network: Network.Id
  read: Read
  now: () => number
  /** Longest wait with the queue, ms. */
  timeoutMs: number
}

/** Concurrent reads for free answers: payments need the node, too. */
const activeMax = 2
/**
 * Most calls inside one: QuoterV2 takes up to some 200,000 gas, and nodes cap eth_call at
 * 50,000,000.
 */
const callsMax = 400
const waitingMax = 1_000

type Question = {
  calls: readonly Call[]
  resolve(answer: Answer): void
  reject(error: unknown): void
}

/** Bundles the reads of concurrent requests, so that many requests cost few node calls. */
export function createReader(options: ReaderOptions): Reader {
  const { network, read, now, timeoutMs } = options
  const waiting = new Set<Question>()
  let active = 0
  let isDue = false

  return {
    ask(calls) {
      if (waiting.size >= waitingMax)
        return Promise.reject(new RpcFault('too many reads are under way'))
      const { promise, resolve, reject } = Promise.withResolvers<Answer>()
      const question = { calls, resolve, reject }
      const timer = setTimeout(() => {
        waiting.delete(question)
        reject(new RpcFault('no answer in time'))
      }, timeoutMs)
      waiting.add(question)
      schedule()
      return promise.finally(() => clearTimeout(timer))
    },
  }

  /** Runs once per turn of the event loop, so that requests of one turn share a call. */
  function schedule(): void {
    if (isDue) return
    isDue = true
    setImmediate(() => {
      isDue = false
      while (active < activeMax && waiting.size > 0) void send(take())
    })
  }

  function take(): Question[] {
    const taken: Question[] = []
    let count = 0
    for (const question of waiting) {
      if (taken.length > 0 && count + question.calls.length > callsMax) break
      waiting.delete(question)
      taken.push(question)
      count += question.calls.length
    }
    return taken
  }

  async function send(questions: readonly Question[]): Promise<void> {
    active++
    const readAt = now()
    try {
      const calls = questions.flatMap((question) => question.calls)
      const { results, blockNumber } = await read(network, calls, { timeoutMs })
      let start = 0
      for (const question of questions) {
        const end = start + question.calls.length
        question.resolve({ results: results.slice(start, end), blockNumber, readAt })
        start = end
      }
    } catch (cause) {
      const fault = cause instanceof RpcFault ? cause : new RpcFault('no usable answer', { cause })
      for (const question of questions) question.reject(fault)
    } finally {
      active--
      schedule()
    }
  }
}
