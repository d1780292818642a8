// mppx's Elysia middleware with a settlement through viem, as its documentation requires.
// Arguments: the chain's URL, the wallet's mode.

import { Elysia } from 'elysia'
import { evm, Mppx } from 'mppx/elysia'
import { type Hex, parseAbi, parseSignature } from 'viem'
import { payee } from '../../shipped'
import { path } from '../network'
import { createWallet, modeOf } from './wallet'

const [rpcUrl = '', word] = process.argv.slice(2)
const mode = modeOf(word)
// It prints failures with a stack; the payers count them.
console.error = () => undefined
const wallet = createWallet(rpcUrl, mode)
const abi = parseAbi([
  'function transferWithAuthorization(address from, address to, uint256 value, uint256 validAfter, uint256 validBefore, bytes32 nonce, uint8 v, bytes32 r, bytes32 s)',
])

type Settle = NonNullable<Parameters<typeof evm>[0]['settle']>

const settle: Settle = async ({ payload, request }) => {
  const { r, s, v = 27n } = parseSignature(payload.signature as Hex)
  const call = {
    address: request.currency as Hex,
    abi,
    functionName: 'transferWithAuthorization',
    args: [
      payload.from as Hex,
      payload.to as Hex,
      BigInt(payload.value),
      BigInt(payload.validAfter),
      BigInt(payload.validBefore),
      payload.nonce as Hex,
      Number(v),
      r,
      s,
    ],
  } as const
  const receipt =
    mode === 'sync'
      ? await wallet.writeContractSync(call)
      : await wallet.waitForTransactionReceipt({ hash: await wallet.writeContract(call) })
  if (receipt.status !== 'success') throw new Error('the transfer failed')
  return { reference: receipt.transactionHash }
}

const mppx = Mppx.create({
  realm: 'localhost',
  secretKey: 'bench-bench-bench-bench-bench-bench',
  methods: [evm({ currency: evm.assets.base.USDC, recipient: payee, settle })],
})
const elysia = new Elysia().guard(
  { beforeHandle: mppx.evm.charge({ amount: '0.01' }) },
  (guarded) => guarded.get(path, () => ({ joke: 'A cat walks into a paywall.' })),
)
elysia.listen({ port: 0, hostname: '127.0.0.1' })
process.stdout.write(`http://127.0.0.1:${elysia.server?.port}\n`)
