import { expect, test } from 'bun:test'
import {
  encodeAbiParameters,
  encodeEventTopics,
  encodeFunctionData,
  type Hex,
  hashTypedData,
  keccak256,
  pad,
  parseAbiParameters,
  parseSignature,
  zeroHash,
} from 'viem'
import * as Channel from '../../src/protocol/Channel'
import * as Crypto from '../../src/protocol/Crypto'
import * as Permit from '../../src/protocol/Permit'
import * as Transfer from '../../src/protocol/Transfer'
import {
  channelAbi,
  channelIdOf,
  channelTypedData,
  depositPermitTypes,
  eip3009Collector,
  permit2Collector,
  settlementAddress,
} from '../harness/channel-contract'
import { random, randomHex } from './random'

const vector: Channel.Config = {
  payer: '0x70997970C51812dc3A010C7d01b50e0d17dc79C8',
  payerAuthorizer: '0x70997970C51812dc3A010C7d01b50e0d17dc79C8',
  receiver: '0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC',
  receiverAuthorizer: '0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266',
  token: '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913',
  withdrawDelay: 86_400,
  salt: zeroHash,
}
const vectorId = '0x560ac10ebe81fa253d825b1d8e9b1302407170d92024b2d28ee1a1b5a9d44a02'

test('ids and digests are those of the public vector', () => {
  const id = Channel.idOf(vector, 8453)
  expect(id).toBe(vectorId)
  expect(Crypto.hex(Channel.voucherDigest(8453, id, 1000n))).toBe(
    '0x73e63d2a6ed087d01aec56068e6456d8e103519fbcb1ff6e8e4f7ed559b24978',
  )
  const row = { config: vector, maxAtomic: 1000n, chargedAtomic: 700n, signature: '0x' as Hex }
  expect(Crypto.hex(Channel.claimDigest(8453, [row]))).toBe(
    '0x4b0af0019e4100157c3572e674bda7c997bd7d46170a9ac83adc21b4ffb0d5f2',
  )
  expect(Crypto.hex(Channel.refundDigest(8453, id, 0n, 500n))).toBe(
    '0xd47e4609d5a3aeec8fac107e99113b561981dc94d5daab918577242275ce33f1',
  )
  expect(Channel.depositNonce(id, `0x${'1'.padStart(64, '0')}`)).toBe(
    '0x3ae156f3d469773250ec71d8705326627fc40d67fcd54c5a084aada4b09b561e',
  )
  // Another chain, and the same text of the config once more.
  expect(Channel.idOf(vector, 84532)).not.toBe(id)
  expect(Channel.idOf({ ...vector }, 8453)).toBe(id)
})

test('two payments of a channel have different nonces, and one has the same again', () => {
  const nonces = [0n, 1n, Channel.amountMax].map((base) => Channel.nonceOf(vectorId, base))
  expect(nonces).toEqual([
    '0x560ac10ebe81fa253d825b1d8e9b130200000000000000000000000000000000',
    '0x560ac10ebe81fa253d825b1d8e9b130200000000000000000000000000000001',
    `0x560ac10ebe81fa253d825b1d8e9b1302${'f'.repeat(32)}`,
  ])
})

const next = random(11)
const address = () => Crypto.checksum(randomHex(next, 20).slice(2))
const uint = (size: number) =>
  next() < 0.1 ? 0n : next() < 0.1 ? 2n ** BigInt(size * 8) - 1n : BigInt(randomHex(next, size))
const randomConfig = (): Channel.Config => ({
  payer: address(),
  payerAuthorizer: address(),
  receiver: address(),
  receiverAuthorizer: address(),
  token: address(),
  withdrawDelay: Number(uint(5)),
  salt: randomHex(next, 32),
})
const anySignature = () => randomHex(next, next() < 0.5 ? 65 : Math.floor(next() * 200) + 1)
const randomRow = (): Channel.ClaimRow => ({
  config: randomConfig(),
  maxAtomic: uint(16),
  chargedAtomic: uint(16),
  signature: anySignature(),
})
const contract = (functionName: string, args: readonly unknown[]) => ({
  to: settlementAddress,
  data: encodeFunctionData({ abi: channelAbi, functionName, args }),
})
const vectors = Array.from({ length: 20 }, () => ({
  chainId: Math.floor(next() * 1e6) + 1,
  config: randomConfig(),
  amount: uint(16),
  rows: Array.from({ length: Math.floor(next() * 4) + 1 }, randomRow),
}))

test('random digests are those of viem', () => {
  for (const { chainId, config, amount, rows } of vectors) {
    const id = channelIdOf(config, chainId)
    expect(Channel.idOf(config, chainId)).toBe(id)
    const typed = (
      type: Parameters<typeof channelTypedData>[1],
      message: Record<string, unknown>,
    ) => hashTypedData(channelTypedData(chainId, type, message))
    const voucher = { channelId: id, maxClaimableAmount: amount }
    expect(Crypto.hex(Channel.voucherDigest(chainId, id, amount))).toBe(typed('Voucher', voucher))
    const nonce = uint(32)
    const refund = Channel.refundDigest(chainId, id, nonce, amount)
    expect(Crypto.hex(refund)).toBe(typed('Refund', { channelId: id, nonce, amount }))
    const claims = rows.map((row) => ({
      channelId: channelIdOf(row.config, chainId),
      maxClaimableAmount: row.maxAtomic,
      totalClaimed: row.chargedAtomic,
    }))
    expect(Crypto.hex(Channel.claimDigest(chainId, rows))).toBe(typed('ClaimBatch', { claims }))
  }
})

test('random calls are those of the contract', () => {
  for (const { config, amount, rows } of vectors) {
    const signature = anySignature()
    const claims = rows.map((row) => ({
      voucher: { channel: row.config, maxClaimableAmount: row.maxAtomic },
      signature: row.signature,
      totalClaimed: row.chargedAtomic,
    }))
    const claim = contract('claimWithSignature', [claims, signature])
    expect(Channel.claimCall(rows, signature)).toEqual(claim)
    const nonce = uint(32)
    const refund = contract('refundWithSignature', [config, amount, nonce, signature])
    expect(Channel.refundCall(config, amount, nonce, signature)).toEqual(refund)
    const both = contract('multicall', [[claim.data, refund.data]])
    expect(Channel.multicall([claim, refund])).toEqual(both)
    const { receiver, token } = config
    expect(Channel.settleCall(receiver, token)).toEqual(contract('settle', [receiver, token]))
    expect(Channel.initiateWithdrawCall(config, amount)).toEqual(
      contract('initiateWithdraw', [config, amount]),
    )
    expect(Channel.finalizeWithdrawCall(config)).toEqual(contract('finalizeWithdraw', [config]))
    const id = config.salt
    expect(Channel.channelsCall(id)).toEqual(contract('channels', [id]))
    expect(Channel.pendingWithdrawalCall(id)).toEqual(contract('pendingWithdrawals', [id]))
    expect(Channel.refundNonceCall(id)).toEqual(contract('refundNonce', [id]))
    expect(Channel.receiversCall(receiver, token)).toEqual(contract('receivers', [receiver, token]))
  }
})

test('deposits have the authorization and the call of each collector', () => {
  for (const { chainId, config, amount: amountAtomic } of vectors) {
    const [validAfter, validBefore, signature] = [uint(8), uint(8), anySignature()]
    const [word, id] = [randomHex(next, 32), channelIdOf(config, chainId)]
    const channel = { config, chainId }
    const authorized = {
      method: 'eip3009' as const,
      validAfter,
      validBefore,
      salt: word,
      signature,
    }
    const deposit = { amountAtomic, by: authorized }
    const domain = { name: 'USD Coin', version: '2', chainId, verifyingContract: config.token }
    const nonce = keccak256(
      encodeAbiParameters(parseAbiParameters('bytes32,uint256'), [id, BigInt(word)]),
    )
    const signed = Channel.authorizationOf(channel, deposit)
    expect(Crypto.hex(Transfer.receiveDigest(signed, { eip712: domain }))).toBe(
      hashTypedData({
        domain,
        types: {
          ReceiveWithAuthorization: [
            { name: 'from', type: 'address' },
            { name: 'to', type: 'address' },
            { name: 'value', type: 'uint256' },
            { name: 'validAfter', type: 'uint256' },
            { name: 'validBefore', type: 'uint256' },
            { name: 'nonce', type: 'bytes32' },
          ],
        },
        primaryType: 'ReceiveWithAuthorization',
        message: {
          from: config.payer,
          to: eip3009Collector,
          value: amountAtomic,
          ...{ validAfter, validBefore, nonce },
        },
      }),
    )
    const data = encodeAbiParameters(parseAbiParameters('uint256,uint256,uint256,bytes'), [
      ...([validAfter, validBefore, BigInt(word), signature] as const),
    ])
    expect(Channel.depositCall(config, deposit)).toEqual(
      contract('deposit', [config, amountAtomic, eip3009Collector, data]),
    )
    const by = { method: 'permit2' as const, nonce: word, deadline: validBefore, signature }
    expect(Crypto.hex(Channel.permitDigest(channel, { amountAtomic, by }))).toBe(
      hashTypedData({
        domain: { name: 'Permit2', chainId, verifyingContract: Permit.permit2Address },
        types: depositPermitTypes,
        primaryType: 'PermitWitnessTransferFrom',
        message: {
          permitted: { token: config.token, amount: amountAtomic },
          spender: permit2Collector,
          nonce: BigInt(word),
          deadline: validBefore,
          witness: { channelId: id },
        },
      }),
    )
    const own = Crypto.sign(Crypto.bytes(word), Crypto.bytes('11'.repeat(32)))
    const permit2612 = { valueAtomic: amountAtomic, deadline: validAfter, signature: own }
    const { r, s } = parseSignature(own)
    const approval = encodeAbiParameters(
      parseAbiParameters('uint256,uint256,uint8,bytes32,bytes32'),
      [amountAtomic, validAfter, Number.parseInt(own.slice(130), 16), r, s],
    )
    for (const [given, bytes] of [
      [by, '0x'],
      [{ ...by, permit2612 }, approval],
      // Tokens want v as 27 or 28.
      [{ ...by, permit2612: { ...permit2612, signature: withLowV(own) } }, approval],
    ] as const) {
      const permitData = encodeAbiParameters(parseAbiParameters('uint256,uint256,bytes,bytes'), [
        ...([BigInt(word), validBefore, signature, bytes] as const),
      ])
      expect(Channel.depositCall(config, { amountAtomic, by: given })).toEqual(
        contract('deposit', [config, amountAtomic, permit2Collector, permitData]),
      )
    }
  }
})

const withLowV = (signature: Hex): Hex =>
  `${signature.slice(0, 130)}${signature.endsWith('1b') ? '00' : '01'}` as Hex

test('events are read with their channel and their amount, and no others', () => {
  const [channelId, sender, amount] = [vectorId as Hex, vector.payer, 7n]
  const log = (eventName: string, args: Record<string, unknown>, values: readonly bigint[]) => ({
    topics: encodeEventTopics({ abi: channelAbi, eventName, args }) as Hex[],
    data: encodeAbiParameters(
      values.map(() => ({ type: 'uint128' })),
      values,
    ),
  })
  const named = { subject: channelId, amountAtomic: amount }
  const own = { channelId, sender }
  for (const [name, event, args, values] of [
    ['deposited', 'Deposited', own, [amount, 9n]],
    ['claimed', 'Claimed', own, [amount, 9n]],
    ['refunded', 'Refunded', own, [amount]],
    ['withdrawInitiated', 'WithdrawInitiated', { channelId }, [amount, 9n]],
    ['withdrawFinalized', 'WithdrawFinalized', own, [amount]],
  ] as const) {
    const found = log(event, args, values)
    expect(Channel.parseEvent(found)).toEqual({ name, ...named })
    expect(found.topics[0]).toBe(Channel.topics[name])
  }
  const { receiver, token } = vector
  expect(Channel.parseEvent(log('Settled', { receiver, token, sender }, [amount]))).toEqual({
    ...{ name: 'settled', subject: pad(receiver).toLowerCase() as Hex, amountAtomic: amount },
  })
  expect(Channel.parseEvent({ topics: [zeroHash], data: zeroHash })).toBeUndefined()
  expect(Channel.parseEvent({ topics: [Channel.topics.claimed], data: '0x' })).toBeUndefined()
  expect(Channel.parseEvent({ topics: [], data: zeroHash })).toBeUndefined()
})

test('a pair of integers is read, and nothing else', () => {
  const pair = encodeAbiParameters(parseAbiParameters('uint128,uint40'), [5n, 6])
  expect(Channel.parsePair(pair)).toEqual([5n, 6n])
  for (const other of ['0x', zeroHash, `${pair}00`] as Hex[])
    expect(Channel.parsePair(other)).toBeUndefined()
})
