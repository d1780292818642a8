import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import manifest from '../../package.json'
import { completion } from '../cli/completion/completion'
import { formatUnit } from '../cli/operate/service'
import { ar, type Entry, gzip, tar, withDirectories } from './archive'
import { names } from './names'

/** Debian's name of each machine. */
export const architectures = { x64: 'amd64', arm64: 'arm64' } as const

/** Sorts a version such as 1.0.0-rc.1 before 1.0.0. */
export const debianVersion = manifest.version.replace('-', '~')

/**
 * A Debian package of the executable with its systemd unit. It starts nothing by itself, because there
 * is no merchants.toml yet, and it keeps the keys and payments in /var/lib when it is removed.
 */
export function debianPackage(machine: keyof typeof architectures, executable: Uint8Array): Buffer {
  const unit = formatUnit({
    program: ['/usr/bin/turnpike'],
    file: '/etc/turnpike/merchants.toml',
    dataDir: '/var/lib/turnpike',
    stopSeconds: 30,
    hasLowPort: false,
  })
  const license = readFileSync(join(import.meta.dir, '../../LICENSE'))
  const files: Entry[] = [
    { path: 'usr/bin/turnpike', mode: 0o755, content: executable },
    { path: 'usr/lib/systemd/system/turnpike.service', mode: 0o644, content: unit },
    {
      path: 'usr/share/bash-completion/completions/turnpike',
      mode: 0o644,
      content: completion('bash'),
    },
    { path: `usr/share/doc/${names.package}/copyright`, mode: 0o644, content: license },
  ]
  const bytes = files.reduce((sum, { content = '' }) => sum + content.length, 0)
  const control = `Package: ${names.package}
Version: ${debianVersion}
Architecture: ${architectures[machine]}
Maintainer: ${names.maintainer}
Installed-Size: ${Math.ceil(bytes / 1024)}
Depends: libc6 (>= 2.17)
Section: net
Priority: optional
Description: payment gateway that sells HTTP APIs per request
 One executable that sells any HTTP API per request to any client with a
 stablecoin wallet, with a systemd unit.
`
  const sums = files.map(
    ({ path, content = '' }) => `${createHash('md5').update(content).digest('hex')}  ${path}\n`,
  )
  return ar({
    'debian-binary': '2.0\n',
    'control.tar.gz': archive([
      { path: 'control', mode: 0o644, content: control },
      { path: 'md5sums', mode: 0o644, content: sums.join('') },
      { path: 'postinst', mode: 0o755, content: afterInstall },
      { path: 'prerm', mode: 0o755, content: beforeRemove },
      { path: 'postrm', mode: 0o755, content: afterRemove },
    ]),
    'data.tar.gz': archive([...files, { path: 'etc/turnpike/', mode: 0o755 }]),
  })
}

/** A script of dpkg, whose commands run where systemd does. */
const script = (...lines: readonly string[]) => `#!/bin/sh
set -e
if [ -d "$DPKG_ROOT/run/systemd/system" ]; then
  systemctl --system daemon-reload
${lines.map((line) => `  ${line}\n`).join('')}fi
`

// $2 is the version before an upgrade. The old process ends after its paid requests. A service that
// does not start is no reason to leave the package half installed.
const afterInstall = script(
  'if [ "$1" = configure ] && [ -n "$2" ]; then systemctl try-restart turnpike.service || true; fi',
)
const beforeRemove = script(
  'if [ "$1" = remove ]; then systemctl disable --now turnpike.service; fi',
)
const afterRemove = script()

function archive(entries: readonly Entry[]): Uint8Array {
  const paths = entries.map((entry) => ({ ...entry, path: `./${entry.path}` }))
  return gzip(tar(withDirectories(paths)))
}
