import { describe, expect, test } from 'bun:test'
import * as Explanation from '../../src/protocol/Explanation'
import * as PaymentTerms from '../../src/protocol/PaymentTerms'
import * as Refusals from '../../src/settlement/read/refusals'

const payer = '0x70997970C51812dc3A010C7d01b50e0d17dc79C8'
const payee = '0x14dC79964da2C08b23698B3D3cc7Ca32193d9955'
const token = '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913'
const asset = {
  symbol: 'USDC',
  address: token,
  decimals: 6,
  transfer: ['eip3009', 'permit2'],
  eip712: { name: 'USD Coin', version: '2' },
  revertsOnUsedNonce: true,
  eip2612: true,
} as const
const transfer = {
  method: 'eip3009',
  network: 'eip155:8453',
  chainId: 8453,
  asset: token,
  payer,
  payee,
  amountAtomic: 5_000n,
  nonce: `0x${'1'.repeat(64)}`,
  validAfter: 100n,
  validBefore: 200n,
  signature: '0x00',
} as const
const facts = {
  used: false,
  balance: 5_000n,
  timestamp: 150n,
  allowance: undefined,
  hasProxy: true,
  refusedByWallet: false,
  eip712: undefined,
}

describe('a refusal of the chain', () => {
  const permit = { ...transfer, method: 'permit2' } as const
  const cases: readonly (readonly [
    string,
    Partial<Refusals.Facts>,
    typeof transfer | typeof permit,
    string,
  ])[] = [
    [
      'a low balance',
      { balance: 1_250n },
      transfer,
      `The payer ${payer} has 0.00125 USDC (1250) on eip155:8453, and the payment is 0.005 USDC (5000).`,
    ],
    [
      'a low allowance',
      { allowance: 1n },
      permit,
      `Permit2 0x000000000022D473030F116dDEE9F6B43aC78BA3 may move 0.000001 USDC (1) of the payer ${payer} on eip155:8453, and the payment is 0.005 USDC (5000): approve Permit2 at the token ${token} for at least that.`,
    ],
    [
      'the end on chain',
      { timestamp: 201n },
      transfer,
      'The authorization has expired on chain: it ends at 200, and the newest block is of 201. Sign a new one.',
    ],
    [
      'the start on chain',
      { timestamp: 99n },
      transfer,
      'The authorization is not valid on chain yet: validAfter is 100, and the newest block is of 99.',
    ],
    [
      'another name in extra',
      { eip712: { name: 'USDC', version: '2' } },
      transfer,
      `The signing domain of the token is name "USD Coin", version "2", chainId 8453, verifyingContract ${token}: correct extra.`,
    ],
    [
      'a wallet',
      { refusedByWallet: true },
      transfer,
      `The wallet ${payer} refuses the signature in the EIP-712 domain name "USD Coin", version "2", chainId 8453, verifyingContract ${token}.`,
    ],
    [
      'a missing proxy',
      { hasProxy: false },
      permit,
      'x402ExactPermit2Proxy is not on eip155:8453: pay by another offer.',
    ],
    [
      'a token that refuses',
      {},
      transfer,
      'The transfer of 0.005 USDC (5000) fails in simulation on eip155:8453: the token may be paused, or block the payer or the payee.',
    ],
  ]
  for (const [name, changes, of, detail] of cases)
    test(`error: of ${name} names what was found and what is needed`, () => {
      expect(Refusals.explain({ asset }, of, { ...facts, ...changes })).toMatchObject({ detail })
    })
})

test('error: a facilitator names both values of each term', () => {
  const signed = { ...transfer, asset: undefined, spender: undefined, facilitator: undefined }
  const requirements = {
    scheme: 'exact',
    network: 'eip155:8453',
    asset: token,
    payTo: payee,
    amountAtomic: 5_000n,
    name: 'USD Coin',
    version: '2',
  }
  const refusal = (of: object, required: object, now: number) => {
    const request = {
      parsed: { method: 'eip3009', signed: { ...signed, ...of } },
      requirements: { ...requirements, ...required },
      accepted: { scheme: 'exact', network: 'eip155:8453' },
    } as unknown as Parameters<typeof PaymentTerms.checkTerms>[0]
    const options = { operation: 'verify', now, isKnown: false, relayers: [] } as const
    return PaymentTerms.checkTerms(request, options)?.detail
  }
  expect(refusal({}, {}, 150_000)).toBeUndefined()
  expect(refusal({}, { amountAtomic: 4_000n }, 150_000)).toBe(
    'The signed amount is 5000, and it must be exactly 4000.',
  )
  expect(refusal({}, { payTo: payer }, 150_000)).toBe(
    `The signed payee is ${payee}, and payTo is ${payer}.`,
  )
  expect(refusal({}, {}, 195_000)).toBe(
    'The authorization has expired or is about to: validBefore is 200, and the time here is 195. ' +
      'Sign a new one; if that fails, too, set your clock.',
  )
  expect(refusal({}, {}, 99_000)).toBe(
    'The authorization is not valid yet: validAfter is 100, and the time here is 99. Set your ' +
      'clock, or wait.',
  )
})

test('amounts are decimal and atomic, of tokens with any decimals', () => {
  const of = (decimals: number) => ({ symbol: 'T', decimals })
  expect(Explanation.amount(1_000_000n, of(6))).toBe('1 T (1000000)')
  expect(Explanation.amount(0n, of(6))).toBe('0 T (0)')
  expect(Explanation.amount(120n, of(0))).toBe('120 T (120)')
  expect(Explanation.amount(2n ** 256n - 1n, of(18))).toContain('(1157920892373161954235709850')
})
