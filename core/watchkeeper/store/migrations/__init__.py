"""The scripts of the migrations, one a module. One that has been released is never edited; a change is a new
one."""
