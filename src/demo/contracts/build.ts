import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import manifest from 'solc/package.json'

type Output = {
  errors?: { severity: string; formattedMessage: string }[]
  contracts: Record<string, Record<string, Contract>>
}
type Contract = {
  abi: readonly unknown[]
  evm: { bytecode: { object: string }; deployedBytecode: { object: string } }
}

const root = join(import.meta.dir, '../../..')
/** Folders with contracts: those of the demo, and those of tests only. */
const folders = ['src/demo/contracts', 'test/harness/contracts']

/** Path of a digest of the sources and of the compiled contracts. */
export const digestPath = join(import.meta.dir, 'artifacts.sha256')

function pathOf(folder: string): string {
  return join(root, folder, 'artifacts.generated.json')
}

/** The input of the compiler. */
function inputOf() {
  const sources = folders.flatMap((folder) => [
    ...new Bun.Glob(`${folder}/*.sol`).scanSync({ cwd: root }),
  ])
  return {
    language: 'Solidity',
    sources: Object.fromEntries(
      sources.sort().map((name) => [name, { content: readFileSync(join(root, name), 'utf8') }]),
    ),
    settings: {
      optimizer: { enabled: true, runs: 200 },
      evmVersion: 'cancun',
      metadata: { appendCBOR: false, bytecodeHash: 'none' },
      outputSelection: {
        '*': { '*': ['abi', 'evm.bytecode.object', 'evm.deployedBytecode.object'] },
      },
    },
  }
}

/**
 * Compiles the contracts: the path and the text of the artifacts of each folder. The same sources give
 * the same text everywhere, no metadata hash is appended. Throws with the compiler's messages.
 */
async function compile(): Promise<[string, string][]> {
  // Loading the compiler takes longer than all the rest.
  const { default: solc } = await import('solc')
  const output = JSON.parse(solc.compile(JSON.stringify(inputOf()))) as Output
  const messages = (output.errors ?? []).map((error) => error.formattedMessage)
  if (messages.length > 0) throw new Error(messages.join('\n'))
  return folders.map((folder) => {
    const artifacts = Object.entries(output.contracts)
      .filter(([source]) => dirname(source) === folder)
      .flatMap(([, contracts]) => Object.entries(contracts))
      // An interface has no code, a library of internal functions no ABI.
      .filter(([, { abi, evm }]) => abi.length > 0 && evm.bytecode.object !== '')
      .map(([name, { abi, evm }]) => [
        name,
        {
          abi,
          bytecode: `0x${evm.bytecode.object}`,
          deployedBytecode: `0x${evm.deployedBytecode.object}`,
        },
      ])
    return [pathOf(folder), `${JSON.stringify(Object.fromEntries(artifacts))}\n`]
  })
}

/** Digest of the compiler's version, of its input and of the artifacts; a line of text. */
export function digest(): string {
  const artifacts = folders.map((folder) => readFileSync(pathOf(folder), 'utf8'))
  const parts = [manifest.version, JSON.stringify(inputOf()), ...artifacts]
  return `${new Bun.CryptoHasher('sha256').update(JSON.stringify(parts)).digest('hex')}\n`
}

/** With `--check` it compares and writes nothing. */
if (import.meta.main) {
  const isCheck = Bun.argv.includes('--check')
  for (const [path, fresh] of await compile()) {
    if (!isCheck) await Bun.write(path, fresh)
    else if (fresh !== (await Bun.file(path).text()))
      throw new Error(`${path} is not what the sources compile to`)
  }
  if (!isCheck) await Bun.write(digestPath, digest())
}
