import { inSeconds, randomNonce } from '../../harness/buyer'
import { network } from '../paid/network'
import { type Payer, sign } from '../paid/payers'
import { payee } from '../shipped'

/** One cent from a payer to the payee of the benchmark, as a resource server requests it. */
export function bodyOf(payer: Payer): string {
  const { id, chainId, asset } = network()
  const { signature, ...signed } = sign(
    {
      method: 'eip3009',
      network: id,
      chainId,
      asset: asset.address,
      payee,
      amountAtomic: 10_000n,
      nonce: randomNonce(),
      validAfter: 0n,
      validBefore: inSeconds(600),
    },
    network(),
    payer,
  )
  const paymentRequirements = {
    scheme: 'exact',
    network: id,
    amount: '10000',
    asset: asset.address,
    payTo: payee,
    maxTimeoutSeconds: 60,
    extra: { ...asset.eip712 },
  }
  const authorization = {
    from: signed.payer,
    to: signed.payee,
    value: '10000',
    validAfter: '0',
    validBefore: `${signed.validBefore}`,
    nonce: signed.nonce,
  }
  const resource = { url: 'https://shop.example.com/item', description: '', mimeType: '' }
  return JSON.stringify({
    x402Version: 2,
    paymentPayload: {
      x402Version: 2,
      payload: { signature, authorization },
      accepted: paymentRequirements,
      resource,
    },
    paymentRequirements,
  })
}

export type Operation = 'verify' | 'settle'

export type Run = { done: number; tried: number; elapsedMs: number; times: number[] }

/** A call that takes longer counts as failed. */
const limitMs = 20_000

/** Every caller sends its bodies one after the other, all callers concurrently, each body once. */
export async function call(
  url: string,
  operation: Operation,
  lists: readonly string[][],
): Promise<Run> {
  const run: Run = { done: 0, tried: 0, elapsedMs: 0, times: [] }
  const startedAt = performance.now()
  await Promise.all(
    lists.map(async (bodies) => {
      for (const body of bodies) {
        const sentAt = performance.now()
        const isDone = await send(`${url}/${operation}`, body)
        run.tried++
        if (!isDone) continue
        run.done++
        run.times.push(performance.now() - sentAt)
      }
    }),
  )
  run.elapsedMs = performance.now() - startedAt
  return run
}

async function send(url: string, body: string): Promise<boolean> {
  try {
    const response = await fetch(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body,
      signal: AbortSignal.timeout(limitMs),
    })
    const answer = (await response.json()) as { isValid?: boolean; success?: boolean }
    return answer.isValid === true || answer.success === true
  } catch {
    return false
  }
}
