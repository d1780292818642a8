import { describe, expect, test } from 'bun:test'
import {
  authorizationTypes,
  eip3009ABI,
  permit2WitnessTypes,
  x402ExactPermit2ProxyABI,
  x402ExactPermit2ProxyAddress,
} from '@x402/evm'
import { encodeFunctionData, hashTypedData, parseAbi } from 'viem'
import * as Abi from '../../src/protocol/Abi'
import * as Crypto from '../../src/protocol/Crypto'
import * as Permit from '../../src/protocol/Permit'
import * as Transfer from '../../src/protocol/Transfer'
import vector from './fixtures/mpp-permit2-vector.json'
import { random, randomHex, randomTransfer } from './random'

function viemDigest(transfer: Transfer.Transfer, eip712: { name: string; version: string }) {
  const { chainId, asset, payer, payee, amountAtomic, validAfter, validBefore, nonce } = transfer
  if (transfer.method === 'eip3009') {
    return hashTypedData({
      domain: { ...eip712, chainId, verifyingContract: asset },
      types: authorizationTypes,
      primaryType: 'TransferWithAuthorization',
      message: { from: payer, to: payee, value: amountAtomic, validAfter, validBefore, nonce },
    })
  }
  return hashTypedData({
    domain: { name: 'Permit2', chainId, verifyingContract: Permit.permit2Address },
    types: permit2WitnessTypes,
    primaryType: 'PermitWitnessTransferFrom',
    message: {
      permitted: { token: asset, amount: amountAtomic },
      spender: Permit.proxyAddress,
      nonce: BigInt(nonce),
      deadline: validBefore,
      witness: { to: payee, validAfter },
    },
  })
}

function viemCall(transfer: Transfer.Transfer) {
  const { asset, payer, payee, amountAtomic, validAfter, validBefore, nonce, signature } = transfer
  if (transfer.method === 'permit2') {
    const permit = {
      permitted: { token: asset, amount: amountAtomic },
      nonce: BigInt(nonce),
      deadline: validBefore,
    }
    return encodeFunctionData({
      abi: x402ExactPermit2ProxyABI,
      functionName: 'settle',
      args: [permit, payer, { to: payee, validAfter }, signature],
    })
  }
  const head = [payer, payee, amountAtomic, validAfter, validBefore, nonce] as const
  if (signature.length !== 132) {
    return encodeFunctionData({
      abi: eip3009ABI,
      functionName: 'transferWithAuthorization',
      args: [...head, signature],
    })
  }
  return encodeFunctionData({
    abi: eip3009ABI,
    functionName: 'transferWithAuthorization',
    args: [
      ...head,
      Number.parseInt(signature.slice(130), 16),
      `0x${signature.slice(2, 66)}`,
      `0x${signature.slice(66, 130)}`,
    ],
  })
}

for (const method of ['eip3009', 'permit2'] as const) {
  describe(method, () => {
    test('digests equal those of viem', () => {
      const next = random(1)
      for (let run = 0; run < 200; run++) {
        const transfer = randomTransfer(next, Crypto.checksum, method)
        const eip712 = { name: `Token ${run % 3} \u00e9`, version: String(run % 2) }
        expect(Crypto.hex(Transfer.digest(transfer, { eip712 }))).toBe(viemDigest(transfer, eip712))
      }
    })

    test('calldata equals that of viem', () => {
      const next = random(2)
      for (let run = 0; run < 200; run++) {
        const transfer = randomTransfer(next, Crypto.checksum, method)
        const call = Transfer.call(transfer)
        expect(call.data).toBe(viemCall(transfer))
        expect(call.to).toBe(method === 'eip3009' ? transfer.asset : x402ExactPermit2ProxyAddress)
      }
    })

    test('a settling call is decoded to what was signed', () => {
      const next = random(3)
      for (let run = 0; run < 100; run++) {
        const transfer = randomTransfer(next, Crypto.checksum, method)
        const { signature: _, chainId: __, network: ___, ...signed } = transfer
        const { to, data } = Transfer.call(transfer)
        expect(Transfer.parseCall(to, data)).toEqual(signed)
        expect(Transfer.parseCall(to, data.toUpperCase().replace('0X', '0x'))).toEqual(signed)
      }
    })

    test('error: truncated calldata, dirty addresses and other selectors are no settlement', () => {
      const transfer = randomTransfer(random(4), Crypto.checksum, method)
      const { to, data } = Transfer.call(transfer)
      expect(Transfer.parseCall(to, data.slice(0, 300))).toBeUndefined()
      expect(Transfer.parseCall(to, `0x00000000${data.slice(10)}`)).toBeUndefined()
      const payerWord = 10 + (method === 'eip3009' ? 0 : 4) * 64
      const dirty = `${data.slice(0, payerWord)}01${data.slice(payerWord + 2)}`
      expect(Transfer.parseCall(to, dirty)).toBeUndefined()
    })
  })
}

test('settleWithPermit of the proxy is decoded', () => {
  const next = random(5)
  const transfer = randomTransfer(next, Crypto.checksum, 'permit2')
  const data = encodeFunctionData({
    abi: x402ExactPermit2ProxyABI,
    functionName: 'settleWithPermit',
    args: [
      { value: 1n, deadline: 2n, r: randomHex(next, 32), s: randomHex(next, 32), v: 27 },
      {
        permitted: { token: transfer.asset, amount: transfer.amountAtomic },
        nonce: BigInt(transfer.nonce),
        deadline: transfer.validBefore,
      },
      transfer.payer,
      { to: transfer.payee, validAfter: transfer.validAfter },
      transfer.signature,
    ],
  })
  const { signature: _, chainId: __, network: ___, ...signed } = transfer
  expect(Transfer.parseCall(Permit.proxyAddress, data)).toEqual(signed)
})

test('a transfer with an EIP-2612 permit calls settleWithPermit', () => {
  const next = random(6)
  for (const v of [0, 1, 27, 28]) {
    const transfer = randomTransfer(next, Crypto.checksum, 'permit2')
    const [r, s] = [randomHex(next, 32), randomHex(next, 32)]
    const signature = `${r}${s.slice(2)}${v.toString(16).padStart(2, '0')}` as const
    const permit2612 = { valueAtomic: transfer.amountAtomic, deadline: 7n, signature }
    const data = encodeFunctionData({
      abi: x402ExactPermit2ProxyABI,
      functionName: 'settleWithPermit',
      args: [
        { value: transfer.amountAtomic, deadline: 7n, r, s, v: v < 27 ? v + 27 : v },
        {
          permitted: { token: transfer.asset, amount: transfer.amountAtomic },
          nonce: BigInt(transfer.nonce),
          deadline: transfer.validBefore,
        },
        transfer.payer,
        { to: transfer.payee, validAfter: transfer.validAfter },
        transfer.signature,
      ],
    })
    expect(Transfer.call({ ...transfer, permit2612 })).toEqual({ to: Permit.proxyAddress, data })
  }
})

test('error: a permit2 call on another contract is no settlement', () => {
  const transfer = randomTransfer(random(6), Crypto.checksum, 'permit2')
  expect(Transfer.parseCall(transfer.asset, Transfer.call(transfer).data)).toBeUndefined()
})

test('error: a plain transfer is no settlement', () => {
  const next = random(7)
  const { asset, payee } = randomTransfer(next, Crypto.checksum, 'eip3009')
  const data = encodeFunctionData({
    abi: parseAbi(['function transfer(address to, uint256 value)']),
    args: [payee, 1n],
  })
  expect(Transfer.parseCall(asset, data)).toBeUndefined()
})

describe('the domain of a token, which a caller of the facilitator may name', () => {
  const transfer = randomTransfer(random(11), Crypto.checksum, 'eip3009')
  const digestIn = (version: string, name: string) =>
    Crypto.hex(Transfer.digest(transfer, { eip712: { name, version } }))

  test('attack: a version and a name that read like those of another token are not its domain', () => {
    for (const [version, name] of [
      ['1/A', 'B'],
      ['1', 'A/B'],
      ['1/A', 'B'],
    ] as const)
      expect(digestIn(version, name)).toBe(viemDigest(transfer, { name, version }))
  })

  test('attack: names of a quarter of a megabyte are not kept', () => {
    const use = () => {
      Bun.gc(true)
      return process.memoryUsage().heapUsed
    }
    digestIn('1', 'x')
    const before = use()
    for (let count = 0; count < 80; count++) digestIn('1', `${count} ${'x'.repeat(250_000)}`)
    expect(use() - before).toBeLessThan(10_000_000)
  })
})

test('domain separators of the known networks', () => {
  expect(
    Abi.domainSeparator(4663, '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168', {
      name: 'Global Dollar',
      version: '1',
    }),
  ).toBe('7a3d7400b27830f4f91c2c16a082486d67c1befecaec2f53b33f1f35d5b62036')
  expect(
    Abi.domainSeparator(8453, '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913', {
      name: 'USD Coin',
      version: '2',
    }),
  ).toBe('02fa7265e7c5d81118673727957699e4d68f74cd74b7db77da710fe8a2c7834f')
  expect(Permit.domainSeparator(4663)).toBe(
    '448684463b1f7965c1ec7c249cee11520df24c07242efc2b20f6e54c85614fad',
  )
})

test('the golden permit2 vector', () => {
  const { payload } = vector.credential
  const transfer: Transfer.Transfer = {
    method: 'permit2',
    network: 'eip155:4663',
    chainId: 4663,
    asset: '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168',
    payer: '0x70997970C51812dc3A010C7d01b50e0d17dc79C8',
    payee: '0x14dC79964da2C08b23698B3D3cc7Ca32193d9955',
    amountAtomic: 10000n,
    nonce: `0x${BigInt(payload.permit.nonce).toString(16).padStart(64, '0')}`,
    validAfter: 0n,
    validBefore: BigInt(payload.permit.deadline),
    signature: payload.signature as `0x${string}`,
  }
  const digest = Transfer.digest(transfer, { eip712: { name: '', version: '' } })
  expect(Crypto.hex(digest)).toBe(vector.eip712Digest as `0x${string}`)
  expect(Crypto.recover(digest, transfer.signature)).toBe(transfer.payer)
})

test('attack: one money has one key, in any spelling', () => {
  const { network, asset, payer, nonce } = randomTransfer(random(7), Crypto.checksum, 'eip3009')
  const upper = (text: string) => `0x${text.slice(2).toUpperCase()}` as const
  const key = Transfer.moneyKey({ network, asset, payer, nonce })
  const spelt = { network, asset: upper(asset), payer: upper(payer), nonce: upper(nonce) }
  expect(Transfer.moneyKey(spelt)).toBe(key)
  expect(Transfer.moneyKey({ network, asset, payer, nonce: asset })).not.toBe(key)
})

test('a charge has the signature of its ceiling', () => {
  const ceiling = randomTransfer(random(8), Crypto.checksum, 'permit2')
  const upto = { ceilingAtomic: ceiling.amountAtomic, facilitator: ceiling.payee }
  const digestOf = (amountAtomic: bigint) =>
    Transfer.digest({ ...ceiling, amountAtomic, upto }, { eip712: { name: '', version: '' } })
  expect(digestOf(1n)).toEqual(digestOf(ceiling.amountAtomic))
  const other = { ...ceiling, upto: { ...upto, ceilingAtomic: 1n } }
  expect(digestOf(1n)).not.toEqual(Transfer.digest(other, { eip712: { name: '', version: '' } }))
})
