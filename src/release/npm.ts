import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import manifest from '../../package.json'
import { type Entry, gzip, tar } from './archive'
import { names } from './names'
import { type Target, targets } from './targets'

const root = join(import.meta.dir, '../..')
const shared = {
  version: manifest.version,
  license: manifest.license,
  // A package with a scope is private by default.
  publishConfig: { access: 'public' },
}

/** Node's names of the system that a package is for, and its C library as npm names it. */
function systemOf({ format, machine, loader }: Target) {
  const os = { elf: 'linux', 'mach-o': 'darwin', pe: 'win32' }[format]
  if (format !== 'elf') return { os, cpu: machine, libc: undefined }
  return { os, cpu: machine, libc: loader?.includes('musl') ? 'musl' : 'glibc' }
}

/** The npm package with the executable of a target, such as @turnpike/linux-x64-musl. */
export function npmNameOf(target: Target): string {
  const { os, cpu, libc } = systemOf(target)
  return `${names.scope}/${os}-${cpu}${libc === 'musl' ? '-musl' : ''}`
}

/** The file name that `npm pack` would give. */
export function npmFileOf(name: string): string {
  return `${name.replace(/^@/, '').replace('/', '-')}-${manifest.version}.tgz`
}

/** The archive of the npm package with one executable. */
export function executablePackage(target: Target, executable: Uint8Array): Uint8Array {
  const { os, cpu, libc } = systemOf(target)
  const end = target.format === 'pe' ? '.exe' : ''
  return pack(
    {
      name: npmNameOf(target),
      description: `The executable of ${names.package} for ${target.name}.`,
      ...shared,
      os: [os],
      cpu: [cpu],
      ...(libc && { libc: [libc] }),
      // Yarn must not leave the executable in an archive.
      preferUnplugged: true,
    },
    [{ path: `bin/turnpike${end}`, mode: 0o755, content: executable }],
  )
}

/**
 * The archive of the npm package with the command. npm installs the one optional package that fits,
 * and no package runs a script at its installation.
 */
export function commandPackage(): Uint8Array {
  const source = readFileSync(join(import.meta.dir, 'launcher.ts'), 'utf8')
  const script = new Bun.Transpiler({ loader: 'ts', target: 'node' }).transformSync(source)
  const path = 'bin/turnpike.mjs'
  return pack(
    {
      name: names.package,
      description: manifest.description,
      ...shared,
      bin: { turnpike: path },
      engines: { node: '>=18' },
      optionalDependencies: Object.fromEntries(
        targets.map((target) => [npmNameOf(target), manifest.version]),
      ),
    },
    [
      { path, mode: 0o755, content: `#!/usr/bin/env node\n${script}` },
      { path: 'README.md', mode: 0o644, content: readFileSync(join(root, 'README.md')) },
    ],
  )
}

function pack(description: object, files: readonly Entry[]): Uint8Array {
  const entries = [
    { path: 'package.json', mode: 0o644, content: `${JSON.stringify(description, null, 2)}\n` },
    { path: 'LICENSE', mode: 0o644, content: readFileSync(join(root, 'LICENSE')) },
    ...files,
  ]
  return gzip(tar(entries.map((entry) => ({ ...entry, path: `package/${entry.path}` }))))
}
