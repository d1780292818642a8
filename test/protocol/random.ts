import type { Hex } from 'viem'
import type { TransferMethod } from '../../src/protocol/Asset'
import type { Transfer } from '../../src/protocol/Transfer'

/** Deterministic generator (mulberry32): a failing case can be run again from its seed. */
export function random(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}

/** Random bytes as hex with prefix. */
export function randomHex(next: () => number, size: number): Hex {
  let text = ''
  for (let index = 0; index < size; index++) {
    text += Math.floor(next() * 256)
      .toString(16)
      .padStart(2, '0')
  }
  return `0x${text}`
}

/** Random transfer with extreme values now and then; not signed. */
export function randomTransfer(
  next: () => number,
  checksum: (digits: string) => Hex,
  method: TransferMethod,
): Transfer & { method: TransferMethod } {
  const chainId = Math.floor(next() * 1e6) + 1
  const address = () => checksum(randomHex(next, 20).slice(2))
  const uint = (size: number) =>
    next() < 0.1 ? 0n : next() < 0.1 ? 2n ** 256n - 1n : BigInt(randomHex(next, size))
  return {
    method,
    network: `eip155:${chainId}`,
    chainId,
    asset: address(),
    payer: address(),
    payee: address(),
    amountAtomic: uint(32),
    nonce: randomHex(next, 32),
    validAfter: uint(8),
    validBefore: uint(8),
    signature: randomHex(next, next() < 0.5 ? 65 : Math.floor(next() * 200) + 1),
  }
}
