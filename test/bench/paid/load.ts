import { path } from './network'
import type { Credential } from './payers'

/** What is bought. */
export type Target = { path: string; init: Omit<RequestInit, 'headers'> & { headers?: object } }

const joke: Target = { path, init: {} }

export type Run = {
  /** Number of confirmed payments with an answer, and of all attempts. */
  paid: number
  tried: number
  elapsedMs: number
  /** Milliseconds of each paid request. */
  times: number[]
  /** How often each status and the like was answered instead. */
  faults: Map<string, number>
}

/** A payment that takes longer counts as failed. */
const limitMs = 20_000

/**
 * Every payer sends its credentials one after the other, all payers concurrently. A credential is
 * sent once, whatever the answer.
 */
export async function pay(
  url: string,
  lists: readonly Credential[][],
  { path, init }: Target = joke,
): Promise<Run> {
  const run: Run = { paid: 0, tried: 0, elapsedMs: 0, times: [], faults: new Map() }
  const startedAt = performance.now()
  await Promise.all(
    lists.map(async (credentials) => {
      for (const credential of credentials) {
        const sentAt = performance.now()
        const fault = await send(url + path, init, credential)
        run.tried++
        if (fault === undefined) {
          run.paid++
          run.times.push(performance.now() - sentAt)
        } else run.faults.set(fault, (run.faults.get(fault) ?? 0) + 1)
      }
    }),
  )
  run.elapsedMs = performance.now() - startedAt
  return run
}

async function send(
  url: string,
  init: Target['init'],
  [name, value]: Credential,
): Promise<string | undefined> {
  try {
    const signal = AbortSignal.timeout(limitMs)
    const response = await fetch(url, {
      ...init,
      headers: { ...init.headers, [name]: value },
      signal,
    })
    await response.arrayBuffer()
    const { status, headers } = response
    if (status !== 200) return `${status}`
    return headers.has('payment-receipt') || headers.has('payment-response')
      ? undefined
      : '200 without a receipt'
  } catch (error) {
    return error instanceof Error ? error.name : 'unknown'
  }
}
